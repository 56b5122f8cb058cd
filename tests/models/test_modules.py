"""Modules that users made: what their architecture tells, and preprocessing in any form."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from dmbp.errors import DMBPError, InputError
from dmbp.models import Preprocessing, as_classifier, is_preparation_known
from dmbp.models.modules import as_preprocessing
from dmbp.models.torchvision_models import import_torchvision

torchvision: Any = import_torchvision()
transforms = torchvision.transforms
GREY = transforms.Grayscale(1)
TENSOR = transforms.ToTensor()
NORMALISE = transforms.Normalize((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            [transforms.Resize(40), transforms.CenterCrop(32), TENSOR, NORMALISE],
            Preprocessing(40, 32, mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3)),
        ),
        (
            [transforms.Resize((24, 32)), TENSOR],
            Preprocessing(crop=(24, 32), fit="squeeze", mean=(0.0,) * 3, std=(1.0,) * 3),
        ),
        (
            [transforms.Resize((48, 40)), transforms.CenterCrop(32), TENSOR],
            Preprocessing((48, 40), 32, fit="squeeze-crop", mean=(0.0,) * 3, std=(1.0,) * 3),
        ),
        (
            [transforms.Resize(32), TENSOR],
            Preprocessing(crop=32, fit="whole", mean=(0.0,) * 3, std=(1.0,) * 3),
        ),
        (
            [GREY, transforms.Resize(40), transforms.CenterCrop(32), TENSOR],
            Preprocessing(40, 32, mean=(0.0,), std=(1.0,)),
        ),
    ],
)
def test_transforms_are_read(steps: list[Any], expected: Preprocessing) -> None:
    found = as_preprocessing(transforms.Compose(steps))
    for name in ("crop", "fit", "mean", "std"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    photo = Image.effect_noise((90, 60), 80).convert("RGB")
    prepared = transforms.Compose(steps)(photo)[None]
    assert torch.allclose(found.tensor(found.view(photo)), prepared, atol=0.02)


@pytest.mark.parametrize(
    "steps",
    [
        [transforms.Resize(40), transforms.CenterCrop(32), transforms.Pad(2), TENSOR],
        [TENSOR, NORMALISE],
        [transforms.Resize(40), transforms.CenterCrop(32)],
    ],
)
def test_a_transform_that_does_something_else_is_refused(steps: list[Any]) -> None:
    with pytest.raises(InputError, match="prepares photos in a way that dmbp cannot read"):
        as_preprocessing(transforms.Compose(steps))


def test_a_transform_for_training_is_refused() -> None:
    steps = [transforms.Resize((32, 32)), transforms.RandomHorizontalFlip(), TENSOR]
    with pytest.raises(InputError, match=r"at random \(RandomHorizontalFlip\)"):
        as_preprocessing(transforms.Compose(steps))


def test_torchvisions_modules_are_recognised_with_any_head() -> None:
    models = torchvision.models
    network = models.resnet18()
    network.fc = nn.Sequential(nn.Dropout(), nn.Linear(512, 4))
    found = as_classifier(network)
    assert (found.name, found.classes) == ("resnet18", None)
    assert found.preprocessing == Preprocessing()
    assert found.origins["mean"] == "torchvision's resnet18"
    assert network.training
    small = as_classifier(models.efficientnet_b1(num_classes=3)).preprocessing
    assert small.size == (240, 240)
    assert as_classifier(models.squeezenet1_1()).classes is not None
    network.conv1 = nn.Conv2d(3, 64, 3)  # no longer torchvision's
    assert not is_preparation_known(as_classifier(network))


def test_timms_modules_are_recognised() -> None:
    timm = pytest.importorskip("timm")
    found = as_classifier(timm.create_model("vit_tiny_patch16_224", num_classes=3))
    assert found.name == "timm:vit_tiny_patch16_224"
    assert found.preprocessing.mean == (0.5, 0.5, 0.5)
    assert is_preparation_known(found)


def test_what_is_given_comes_first() -> None:
    network = torchvision.models.resnet18()
    found = as_classifier(
        network, name="mine", preprocessing={"size": 64}, classes=["a", "b"], activation="sigmoid"
    )
    assert (found.name, found.classes, found.activation) == ("mine", ("a", "b"), "sigmoid")
    assert found.preprocessing.size == (64, 64)
    with pytest.raises(InputError, match="classes are a list of names"):
        as_classifier(network, classes="ab")
    with pytest.raises(DMBPError):
        as_classifier("resnet18")
