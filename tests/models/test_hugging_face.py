"""Image classifiers of `transformers`: exact, with their own labels and preprocessing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import dmbp
from dmbp.errors import ModelError
from dmbp.models import hugging_face_classifier, load_model
from dmbp.models.hugging_face import read_preprocessing
from dmbp.models.torchvision_models import import_torchvision
from tests.tolerance import FLOAT64, relative

import_torchvision()  # transformers imports it, which may fail beside a CPU build of torch
transformers: Any = pytest.importorskip("transformers")

SIDE, CLASSES, TARGET = 32, 5, 3

TOKENS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 8,
    "image_size": SIDE,
}
MODELS: dict[str, dict[str, Any]] = {
    "ViT": TOKENS,
    "DeiT": TOKENS,
    "Beit": {**TOKENS, "use_relative_position_bias": True},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]},
    "ConvNext": {"hidden_sizes": [4, 8, 12, 16], "depths": [1, 1, 1, 1]},
    "Swin": {
        "image_size": SIDE,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [2, 1],
        "num_heads": [2, 2],
        "window_size": 4,
    },
    "MobileNetV2": {"image_size": SIDE, "depth_multiplier": 0.25},
}


def make_model(kind: str, **more: Any) -> nn.Module:
    """Return a tiny network whose weights are large enough for every part to matter."""
    config = getattr(transformers, f"{kind}Config")(**MODELS[kind], num_labels=CLASSES, **more)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_is_exact_and_its_terms_add_up(kind: str) -> None:
    model = make_model(kind).double()
    images = torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    explainer = dmbp.DMBP(model, iterations=3)
    d = explainer.explain(images, target=TARGET)
    with torch.no_grad():
        scores = model(images).logits
    assert relative(d.output, scores[:, TARGET]) <= FLOAT64
    assert d.exactness <= FLOAT64
    terms = d.positive_output + d.negative_output + d.nuisance_output
    assert relative(terms, d.output) <= FLOAT64
    maps = explainer.attribute(images, target=torch.tensor([TARGET, 0]))
    assert maps.shape == images.shape
    assert relative(maps[:1], d.attribution[:1]) <= FLOAT64
    assert maps.flatten(1).abs().amax(1).min() > 0


PROCESSORS: dict[str, Callable[[], Any]] = {
    "squeezed": lambda: transformers.ViTImageProcessor(),
    "squeezed, then cut": lambda: transformers.DeiTImageProcessor(),
    "cut": lambda: transformers.MobileNetV2ImageProcessor(),
    "ConvNeXt, large": lambda: transformers.ConvNextImageProcessor(),
    "ConvNeXt, small": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 224}),
    "no normalisation": lambda: transformers.ViTImageProcessor(do_normalize=False),
    "0 to 255": lambda: transformers.ViTImageProcessor(do_rescale=False, image_mean=[9.0] * 3),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_photos_are_prepared_as_the_processor_does(case: str) -> None:
    """The photo is another one than the trial photo with which the settings are checked."""
    processor = PROCESSORS[case]()
    found = read_preprocessing(processor)
    noise = Image.effect_noise((31, 47), 90).convert("RGB")
    photo = noise.resize((310, 470), Image.Resampling.BICUBIC)
    theirs = processor(photo, return_tensors="pt")["pixel_values"]
    ours = found.tensor(found.view(photo))
    levels = 255 * (ours - theirs).abs() * torch.tensor(found.std).view(-1, 1, 1)
    assert float(levels.max()) <= 2.01  # two ways of rounding


@pytest.mark.parametrize("name", ["Levit", "MobileViT", "EfficientNet", "Swin2SR"])
def test_a_processor_with_rules_of_its_own_is_refused(name: str) -> None:
    processor = getattr(transformers, f"{name}ImageProcessor")()
    with pytest.raises(ModelError, match="in a way that dmbp does not support; give --size"):
        read_preprocessing(processor)


def test_labels_and_kinds_of_classes() -> None:
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    labels = dict(enumerate(["cat", "dog", "bird", "fish", "horse"]))
    named = hugging_face_classifier(make_model("ViT", id2label=labels), processor)
    assert named.classes == tuple(labels.values())
    assert named.activation == "softmax"
    assert (named.preprocessing.fit, named.preprocessing.crop) == ("squeeze", SIDE)
    several = make_model("ViT", problem_type="multi_label_classification")
    plain = hugging_face_classifier(several, processor, name="mine")
    assert (plain.name, plain.classes, plain.activation) == ("mine", None, "sigmoid")


FACTORY = """
from transformers import AutoImageProcessor, AutoModelForImageClassification

from dmbp.models import hugging_face_classifier

def make():
    model = AutoModelForImageClassification.from_pretrained("a-folder")
    return hugging_face_classifier(model, AutoImageProcessor.from_pretrained("a-folder"))

def bare():
    return AutoModelForImageClassification.from_pretrained("a-folder")
"""


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = dict(enumerate(["cat", "dog", "bird", "fish", "horse"]))
    make_model("ViT", id2label=labels).save_pretrained("a-folder")
    processor = transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained("a-folder")
    Path("hub_models.py").write_text(FACTORY)
    Image.effect_noise((60, 40), 90).convert("RGB").save("photo.jpg")
    # In a process of its own, because torchvision has already been imported in this one.
    command = [Path(sys.executable).with_name("dmbp"), "explain", "photo.jpg", "--iterations", "2"]
    options = ["--model", "hub_models:make", "--target", "fish"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(Path("dmbp-out/photo.json").read_text())
    assert record["targets"][0]["name"] == "fish"
    assert record["model"] == "a-folder"
    assert record["exactness"] <= 1e-4
    assert load_model("hub_models:bare").classes == tuple(labels.values())
