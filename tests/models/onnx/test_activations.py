"""Activations that exporters spell out are recognised, so the file is explained as the module."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dmbp
from dmbp.models.onnx.file import read_classifier
from tests.models.networks import export_onnx
from tests.tolerance import relative

pytest.importorskip("onnx")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softsign": F.softsign,
    "selu": F.selu,
}


class Between(nn.Module):
    """An activation between two layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        return self.last(ACTIVATIONS[self.name](self.first(images)).mean((2, 3)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_maps_are_the_modules(tmp_path: Path, name: str) -> None:
    model = Between(name).double().eval()
    path = export_onnx(model, tmp_path / "net.onnx", 8, dynamic=False, opset_version=13)
    images = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    read = read_classifier(path).module.double()
    maps = [dmbp.DMBP(net, iterations=10).attribute(images, target=1) for net in (read, model)]
    assert relative(*maps) <= 1e-6  # the file's constants are rounded to single precision
    sites = [dmbp.linearize(net, images, target=1).sites for net in (read, model)]
    assert len(sites[0]) == len(sites[1]) == 1
