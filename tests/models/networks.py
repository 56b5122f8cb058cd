"""What the tests of exported models share: a network, an ONNX export, a comparison of maps."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import dmbp
from dmbp.models import Classifier
from tests.tolerance import FLOAT32, relative


def small_network() -> nn.Module:
    """Return a network for three classes that takes images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    ).eval()


def export_onnx(
    model: nn.Module, path: Path, side: int, *, dynamic: bool, dynamo: bool = False, **settings: Any
) -> Path:
    """Write a model that takes square RGB images to an ONNX file; return the file's path."""
    dtype = next(model.parameters()).dtype
    images = torch.zeros(2 if dynamic else 1, 3, side, side, dtype=dtype)
    if dynamic and dynamo:
        settings |= {"dynamic_shapes": ({0: Dim.DYNAMIC},)}
    elif dynamic:
        settings |= {"dynamic_axes": {"images": {0: "batch"}}}
    settings |= {"verbose": False} if dynamo else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn about themselves
        torch.onnx.export(model, (images,), path, dynamo=dynamo, input_names=["images"], **settings)
    return path


def assert_same_map(ours: Classifier, model: nn.Module, images: Tensor, target: object) -> None:
    """Check that a classifier's module is explained as the model it was exported from."""
    explainers = [dmbp.DMBP(net, preset="fast", iterations=10) for net in (ours.module, model)]
    found, expected = (one.attribute(images, target=target) for one in explainers)
    assert torch.isfinite(expected).all()
    assert relative(found, expected) <= FLOAT32
