"""CLIP, SigLIP and their relatives: encoders of images and texts that can be compared.

Such a model is loaded as an encoder of images. With prompts it becomes a classifier of them: the
embeddings of the prompts are computed once and held, and the score of each is the model's own,
scale · cos(image, text) + bias.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dmbp.errors import InputError, ModelError, first_line
from dmbp.files import shown

Tokenizer = Callable[[], Any]
"""Returns a tokenizer of `transformers`; it is read when a prompt is given."""

SAME_SCORES = 1e-4
"""The relative difference allowed between scores of a trial image and the model's own."""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_text_encoder(module: nn.Module) -> bool:
    """Return whether a model encodes images and texts."""
    return all(hasattr(module, f"get_{kind}_features") for kind in ("image", "text"))


def _features(returned: Any) -> Tensor:
    return returned if isinstance(returned, Tensor) else returned.pooler_output


class ImageEncoder(nn.Module):
    """Returns the embedding of an image; the part of the model that encodes texts is left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.copy(model)
        parts = model._modules.items()
        self.model._modules = {key: part for key, part in parts if not key.startswith("text")}

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings of a batch of images, (images, numbers)."""
        encode: Any = self.model.get_image_features
        return _features(encode(pixel_values=images))


class TextEncoder:
    """Returns the embedding of a text.

    Args:
        model: A model with an encoder of texts.
        tokenizer: Returns its tokenizer.
        name: What the model is called.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer | None, name: str) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._name = name

    @torch.no_grad()
    def __call__(self, text: str) -> Tensor:
        """Return the embedding, (numbers,)."""
        return _features(self._model.get_text_features(input_ids=self.tokens(text)))[0]

    def tokens(self, text: str) -> Tensor:
        """Return a text's tokens, (1, tokens).

        Raises:
            InputError: If the text is empty or too long.
            ModelError: If there is no tokenizer.
        """
        if not text.strip():
            raise InputError("a prompt is empty: give a text such as 'a photo of a cat'")
        if not _is_unicode(text):
            raise InputError(f"the prompt {shown(text[:40])!r} has bytes that are not UTF-8")
        if self._tokenizer is None:
            raise ModelError(f"{self._name} has no tokenizer, which prompts need")
        tokenizer = self._tokenizer()
        try:
            most = int(self._model.config.text_config.max_position_embeddings)
            found = tokenizer(text, padding=False, truncation=False)["input_ids"]
            is_too_long = len(found) > most
            if not is_too_long and str(self._model.config.model_type).startswith("siglip"):
                # It learned from such texts.
                found = tokenizer(text, padding="max_length", max_length=most)["input_ids"]
        except Exception as error:  # tokenizers raise almost anything for a file with odd entries
            raise ModelError(
                f"the tokenizer of {self._name} cannot be used: {first_line(error)[:150]}"
            ) from error
        if is_too_long:
            raise InputError(
                f"the prompt {text[:40]!r} has {len(found)} tokens, and {self._name} takes at most "
                f"{most}: shorten it"
            )
        return torch.tensor([found], device=next(self._model.text_model.parameters()).device)


class PromptScorer(nn.Module):
    """Returns a score for each of some prompts.

    Args:
        encoder: Encodes images.
        texts: The embeddings of the prompts, (prompts, numbers).
        scale: What cosines are multiplied by.
        bias: What is added.
    """

    texts: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, encoder: nn.Module, texts: Tensor, scale: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("texts", functional.normalize(texts, dim=1))
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("bias", bias.detach().clone())

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of a batch of images, (images, prompts)."""
        embedded = functional.normalize(self.encoder(images), dim=1)
        return self.scale * (embedded @ self.texts.T) + self.bias

    @staticmethod
    @torch.no_grad()
    def of(
        model: Any, texts: TextEncoder, prompts: Sequence[str], size: tuple[int, int]
    ) -> PromptScorer:
        """Return the scores of some prompts for a model.

        Args:
            model: A model with encoders of images and texts.
            texts: Its encoder of texts.
            prompts: The prompts.
            size: Height and width of its input.

        Raises:
            ModelError: If the model computes its scores in another way.
        """
        if not hasattr(model, "logit_scale"):
            raise _other_scores(model)
        scale = model.logit_scale.exp()
        bias = getattr(model, "logit_bias", torch.zeros_like(scale))
        embedded = torch.stack([texts(prompt) for prompt in prompts])
        scorer = PromptScorer(ImageEncoder(model), embedded, scale, bias).eval()
        parameter = next(model.parameters())
        generator = torch.Generator().manual_seed(0)
        image = torch.randn(1, 3, *size, generator=generator).to(parameter)
        for number, prompt in enumerate(prompts):
            returned = model(input_ids=texts.tokens(prompt), pixel_values=image)
            expected = returned.logits_per_image[0, 0]
            difference = (scorer(image)[0, number] - expected).abs()
            if float(difference) > SAME_SCORES * max(1.0, float(expected.abs())):
                raise _other_scores(model)
        return scorer


def _other_scores(model: nn.Module) -> ModelError:
    return ModelError(
        f"{type(model).__name__} does not compare images and prompts by their cosine alone: use "
        "--target similarity:prompt=TEXT"
    )
