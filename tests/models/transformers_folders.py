"""Tiny models of `transformers` with random weights, as `save_pretrained` writes them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dmbp.models.torchvision_models import import_torchvision

import_torchvision()  # transformers imports it, which may fail beside a CPU build of torch
transformers: Any = pytest.importorskip("transformers")
tokenizers: Any = pytest.importorskip("tokenizers")

SIDE = 32
WORDS = ("<pad>", "<s>", "</s>", "<unk>", "a", "cat", "dog", "photo", "of")
LONGEST_PROMPT = 8

LABELS = ("cat", "dog", "bird")
TOKENS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 8,
    "image_size": SIDE,
}
TEXTS: dict[str, Any] = {
    **{key: TOKENS[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size")},
    "num_hidden_layers": 1,
    "vocab_size": len(WORDS),
    "max_position_embeddings": LONGEST_PROMPT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _text_and_image(kind: str, **more: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        text_config={**TEXTS, **more}, vision_config={**TOKENS, **more}, **more
    )
    return getattr(transformers, f"{kind}Model")(config)


def _detr(kind: str) -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        out_features=["stage2"],
        layer_type="basic",
    )
    sizes = {
        f"{part}_{name}": size
        for part in ("encoder", "decoder")
        for name, size in (("layers", 1), ("ffn_dim", 32), ("attention_heads", 2))
    }
    config = getattr(transformers, f"{kind}Config")(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        num_queries=6,
        id2label=dict(enumerate(LABELS)),
        **sizes,
    )
    return getattr(transformers, f"{kind}ForObjectDetection")(config)


def _yolos() -> Any:
    sizes = {**TOKENS, "image_size": [SIDE, SIDE], "num_detection_tokens": 5}
    return transformers.YolosForObjectDetection(transformers.YolosConfig(**sizes, num_labels=4))


def _segformer() -> Any:
    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 8, 16, 16],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
        id2label=dict(enumerate(LABELS)),
    )
    return transformers.SegformerForSemanticSegmentation(config)


def _dinov2() -> Any:
    return transformers.Dinov2Model(transformers.Dinov2Config(**TOKENS))


SQUARE = {"height": SIDE, "width": SIDE}
SHORT = {"shortest_edge": 2 * SIDE, "longest_edge": 3 * SIDE}

MODELS: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "clip": (
        lambda: _text_and_image("CLIP", projection_dim=8),
        lambda: transformers.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE),
    ),
    "siglip": (
        lambda: _text_and_image("Siglip"),
        lambda: transformers.SiglipImageProcessor(size=SQUARE),
    ),
    "detr": (lambda: _detr("Detr"), lambda: transformers.DetrImageProcessor(size=SHORT)),
    "conditional_detr": (
        lambda: _detr("ConditionalDetr"),
        lambda: transformers.ConditionalDetrImageProcessor(size=SHORT),
    ),
    "yolos": (_yolos, lambda: transformers.YolosImageProcessor(size=SHORT)),
    "segformer": (_segformer, lambda: transformers.SegformerImageProcessor(size=SQUARE)),
    "dinov2": (_dinov2, lambda: transformers.BitImageProcessor(size=SQUARE, crop_size=SQUARE)),
}
"""Makers of each model and of its image processor."""


def make(name: str) -> nn.Module:
    """Return a model whose weights are large enough for every part to matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name][0]().eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3)
    return model


def make_tokenizer() -> Any:
    """Return a tokenizer of whole words, which puts one token before and one after a text."""
    words = {word: number for number, word in enumerate(WORDS)}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    whole.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def save(name: str, folder: Path) -> Path:
    """Write a model's folder into another one, and return its path."""
    path = folder / name
    make(name).save_pretrained(path)
    MODELS[name][1]().save_pretrained(path)
    if name in ("clip", "siglip"):
        make_tokenizer().save_pretrained(path)
    return path
