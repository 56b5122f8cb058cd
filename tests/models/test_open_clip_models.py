"""Models of open_clip: a small stand-in for the package, and the real one where it is installed."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dmbp
from dmbp.errors import InputError, ModelError, WeightsError
from dmbp.models import load_model, open_clip_classifier
from tests.tolerance import FLOAT32, relative

PROMPTS = ["a cat", "a dog"]
SETTINGS = {
    "size": 16,
    "mean": (0.5, 0.5, 0.5),
    "std": (0.25, 0.25, 0.25),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


class Small(nn.Module):
    """A model with the interface of the package's."""

    context_length = 6

    def __init__(self) -> None:
        super().__init__()
        self.visual: Any = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten())
        self.visual.append(nn.Linear(128, 5))
        self.visual.preprocess_cfg = SETTINGS
        self.words = nn.EmbeddingBag(128, 5)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.logit_bias: nn.Parameter | None = None

    def encode_image(self, images: Tensor) -> Tensor:
        return self.visual(images)

    def encode_text(self, tokens: Tensor) -> Tensor:
        return self.words(tokens)


def tokenizer(texts: list[str], context_length: int = 6) -> Tensor:
    rows = [[*map(ord, text[: context_length - 1]), 127] for text in texts]
    return torch.tensor([row + [0] * (context_length - len(row)) for row in rows])


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that knows one model."""
    small = SimpleNamespace(
        list_models=lambda: ["small"],
        create_model=lambda name, pretrained: Small(),
        get_tokenizer=lambda name: tokenizer,
    )
    monkeypatch.setitem(sys.modules, "open_clip", small)


def test_prompts_are_scored_as_the_package_scores_them() -> None:
    model, images = Small(), torch.rand(2, 3, 16, 16)
    found = open_clip_classifier(model, tokenizer)
    assert (found.is_encoder, found.preprocessing.size) == (True, (16, 16))
    scored = found.with_prompts(PROMPTS)
    texts = functional.normalize(model.encode_text(tokenizer(PROMPTS)), dim=1)
    expected = torch.tensor(2.0).exp() * (
        functional.normalize(model.encode_image(images), dim=1) @ texts.T
    )
    with torch.no_grad():
        assert relative(scored.module(images), expected.detach()) <= FLOAT32
    d = dmbp.DMBP(scored.module, preset="fast", iterations=1).explain(images, target=0)
    assert relative(d.output, expected[:, 0].detach()) <= FLOAT32
    model.logit_bias = nn.Parameter(torch.tensor(-3.0))
    with_bias = open_clip_classifier(model, tokenizer)
    assert with_bias.activation == "sigmoid"
    with torch.no_grad():
        scores = with_bias.with_prompts(PROMPTS[:1]).module(images)
    assert relative(scores, expected[:, :1].detach() - 3) <= FLOAT32


def test_bad_prompts_and_other_models_are_one_sentence() -> None:
    found = open_clip_classifier(Small(), tokenizer)
    with pytest.raises(InputError, match="a prompt is empty"):
        found.with_prompts(["a", " "])
    with pytest.raises(InputError, match="has more tokens than the 6 that open_clip takes"):
        found.with_prompts(["a cat", "a large cat"])
    longest = Small()
    longest.visual.preprocess_cfg = {**SETTINGS, "resize_mode": "longest"}
    with pytest.raises(ModelError, match="prepares photos for this model in a way"):
        open_clip_classifier(longest, tokenizer)
    other = Small()
    other.encode_image = lambda images: other.visual(images).square()  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="computes the embeddings of images in a way of its own"):
        open_clip_classifier(other, tokenizer)


@pytest.mark.usefixtures("package")
def test_a_name_and_a_file_of_weights(tmp_path: Path) -> None:
    model = Small()
    torch.save(model.state_dict(), tmp_path / "small.pt")
    found = load_model("open_clip:small", weights=tmp_path / "small.pt")
    images = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(found.module(images), model.visual(images))
    assert load_model("open_clip:small:mine").name == "open_clip:small:mine"
    with pytest.raises(WeightsError, match="needs weights: name those that open_clip publishes"):
        load_model("open_clip:small")
    with pytest.raises(WeightsError, match="names its weights already"):
        load_model("open_clip:small:mine", weights=tmp_path / "small.pt")
    with pytest.raises(ModelError, match="has no model 'smal'; did you mean 'small'"):
        load_model("open_clip:smal:mine")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModelError, match="needs the package open_clip: pip install open_clip_torc"):
        load_model("open_clip:RN50:openai")


@pytest.mark.skipif(
    importlib.util.find_spec("open_clip") is None, reason="open_clip is not installed"
)
@pytest.mark.parametrize("name", ["RN50", "ViT-B-32", "coca_ViT-B-32"])
def test_models_of_the_package_are_exact(name: str) -> None:
    package: Any = importlib.import_module("open_clip")
    model = package.create_model(name, pretrained=None).eval()
    words = package.get_tokenizer(name)
    found = open_clip_classifier(model, words).with_prompts(PROMPTS)
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        image = model.encode_image(images, normalize=True)
        texts = model.encode_text(words(PROMPTS), normalize=True)
        expected = model.logit_scale.exp() * image @ texts.T
        assert relative(found.module(images), expected) <= FLOAT32
    d = dmbp.DMBP(found.module, preset="fast", iterations=1).explain(images, target=1)
    assert relative(d.output, expected[:, 1]) <= 10 * FLOAT32
