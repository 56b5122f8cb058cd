"""Loads models of the package `open_clip`, where it is installed: CLIP and its relatives.

    open_clip:ViT-B-32:laion2b_s34b_b79k     with weights that the package downloads
    open_clip:ViT-B-32, --weights FILE       with the weights of a file

They are encoders of images, and with prompts classifiers of these, as those of Hugging Face are.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from dmbp.errors import InputError, ModelError, WeightsError, first_line, suggestion
from dmbp.files import shown
from dmbp.models.classifier import Classifier, Fit, Preprocessing
from dmbp.models.hugging_face.prompts import SAME_SCORES, PromptScorer
from dmbp.models.state_dict import load_state_dict, read_state_dict
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import silence_logging

PREFIX = "open_clip"

FITS: dict[str, Fit] = {"shortest": "crop", "squash": "squeeze"}
"""How photos are fitted into the input, by the package's names for it."""


def open_clip_model(name: str, weights: Path | None) -> Classifier:
    """Return a model of `open_clip`.

    Args:
        name: An architecture, such as ViT-B-32, or one with published weights after a colon.
        weights: A file of weights, if the name has none.

    Raises:
        ModelError: If the package is not installed, or has no such model.
        WeightsError: If weights are missing, cannot be loaded, or do not fit.
    """
    architecture, _, published = name.partition(":")
    import_torchvision()  # its own import would fail with a CPU build of torch
    try:
        package: Any = import_module(PREFIX)
    except ImportError as error:
        raise ModelError(
            f"{PREFIX}:{shown(name)} needs the package {PREFIX}: pip install open_clip_torch"
        ) from error
    known: list[str] = package.list_models()
    if architecture not in known:
        raise ModelError(
            f"{PREFIX} has no model {shown(architecture)!r}; {suggestion(architecture, known)}"
        )
    if published and weights is not None:
        raise WeightsError(f"{name} names its weights already: leave out {weights}")
    if not published and weights is None:
        raise WeightsError(
            f"{PREFIX}:{architecture} needs weights: name those that {PREFIX} publishes, such as "
            f"{PREFIX}:ViT-B-32:laion2b_s34b_b79k, or give a file with --weights"
        )
    try:
        with silence_logging():
            module = package.create_model(architecture, pretrained=published or None)
            tokenizer = package.get_tokenizer(architecture)
    except Exception as error:  # a download that fails raises almost anything
        raise WeightsError(
            f"{PREFIX} cannot load {shown(name)!r}: {first_line(error)[:150]}"
        ) from error
    if weights is not None:
        load_state_dict(module, read_state_dict(weights), str(weights))
    return open_clip_classifier(module, tokenizer, name=f"{PREFIX}:{name}")


def open_clip_classifier(module: nn.Module, tokenizer: Any, *, name: str = PREFIX) -> Classifier:
    """Combine a model of `open_clip` with its tokenizer.

    Args:
        module: The model, such as `open_clip.create_model` returns.
        tokenizer: Its tokenizer, such as `open_clip.get_tokenizer` returns.
        name: What to call the model.

    Returns:
        An encoder of images, which becomes a classifier of prompts by `with_prompts`.

    Raises:
        ModelError: If the model computes embeddings in a way that is not supported.
    """
    model: Any = module.eval()
    preprocessing = _preprocessing(model)
    encoder, texts = VisualTower(model).eval(), TextTower(model, tokenizer, name)
    parameter = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    trial = torch.randn(1, 3, *preprocessing.size, generator=generator).to(parameter)
    with torch.no_grad():
        embedded = functional.normalize(model.encode_image(trial), dim=-1), encoder(trial)
    expected, found = embedded[0], functional.normalize(embedded[1], dim=-1)
    if found.shape != expected.shape or float((found - expected).abs().max()) > SAME_SCORES:
        raise ModelError(f"{name} computes the embeddings of images in a way of its own")
    bias = getattr(model, "logit_bias", None)

    @torch.no_grad()
    def compare(prompts: Sequence[str]) -> nn.Module:
        embedded = torch.stack([texts(prompt) for prompt in prompts])
        scale = model.logit_scale.exp()
        added = torch.zeros_like(scale) if bias is None else bias
        return PromptScorer(encoder, embedded, scale, added).eval()

    return Classifier(
        name,
        encoder,
        preprocessing,
        activation="softmax" if bias is None else "sigmoid",
        embed=texts,
        is_encoder=True,
        compare=compare,
    )


class VisualTower(nn.Module):
    """Returns the embedding of an image, by the part of the model that encodes images."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.visual = model.visual

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings of a batch of images, (images, numbers)."""
        returned: Any = self.visual(images)
        return returned if isinstance(returned, Tensor) else returned[0]


class TextTower:
    """Returns the embedding of a text.

    Args:
        model: A model with an encoder of texts.
        tokenizer: Its tokenizer.
        name: What the model is called.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self._model, self._tokenizer, self._name = model, tokenizer, name

    @torch.no_grad()
    def __call__(self, text: str) -> Tensor:
        """Return the embedding, (numbers,).

        Raises:
            InputError: If the text is empty or too long.
        """
        if not text.strip():
            raise InputError("a prompt is empty: give a text such as 'a photo of a cat'")
        most = int(self._model.context_length)
        padded = self._tokenizer([text, ""], context_length=most + 1)
        if padded[0, -1] != padded[1, -1]:  # a text that is cut has no padding at its end
            raise InputError(
                f"the prompt {text[:40]!r} has more tokens than the {most} that {self._name} "
                "takes: shorten it"
            )
        tokens = self._tokenizer([text], context_length=most)
        tokens = tokens.to(next(self._model.parameters()).device)
        return functional.normalize(self._model.encode_text(tokens), dim=-1)[0]


def _preprocessing(model: Any) -> Preprocessing:
    """Return the preprocessing that a model of the package states.

    Raises:
        ModelError: If it is not supported.
    """
    stated: Any = getattr(model.visual, "preprocess_cfg", None) or {}
    try:
        return Preprocessing(
            resize=stated["size"],
            crop=stated["size"],
            fit=FITS[stated["resize_mode"]],
            mean=stated["mean"],
            std=stated["std"],
            interpolation=Image.Resampling[str(stated["interpolation"]).upper()],
        )
    except KeyError as error:
        raise ModelError(
            f"{PREFIX} prepares photos for this model in a way that is not supported: {error}"
        ) from error
