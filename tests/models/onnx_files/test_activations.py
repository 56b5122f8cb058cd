"""Activations that are spelled out in a file are put together again, and nothing else is."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dmbp.models.onnx_files.activations import with_activations
from dmbp.models.onnx_files.graph import Graph, read_graph
from tests.models.test_onnx_file import save

onnx = pytest.importorskip("onnx")

Function = Callable[[Tensor], Tensor]


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 2, 3), nn.Linear(2, 2)
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.function(self.first(images)).mean((2, 3)))


def graph_of(function: Function, path: Path) -> Graph:
    model = Between(function).eval()
    proto = onnx.load(save(model, path / "net.onnx", 8, dynamic=False, opset_version=13))
    return with_activations(read_graph(proto, "images", proto.graph.output[0].name))


def between(graph: Graph) -> list[str]:
    return [node.operation for node in graph.nodes][1:-2]


WRITTEN_OUT: dict[str, tuple[Function, str]] = {
    "silu": (F.silu, "Swish"),
    "hardswish": (F.hardswish, "HardSwish"),
    "hardswish by hand": (lambda x: x * F.relu6(x + 3) / 6, "HardSwish"),
    "mish": (F.mish, "Mish"),
    "gelu": (F.gelu, "Gelu"),
    "gelu by hand": (lambda x: (0.5 * x) * (torch.erf(x * 0.70710678) + 1), "Gelu"),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), "Gelu"),
    "gelu by tanh, a power": (
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3)))),
        "Gelu",
    ),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_an_activation_is_put_together(tmp_path: Path, name: str) -> None:
    function, operation = WRITTEN_OUT[name]
    assert between(graph_of(function, tmp_path)) == [operation]


def test_its_way_by_tanh_is_kept(tmp_path: Path) -> None:
    graph = graph_of(lambda x: F.gelu(x, approximate="tanh"), tmp_path)
    assert graph.nodes[1].attributes == {"approximate": "tanh"}


OTHERS: dict[str, Function] = {
    "a gate of something else": lambda x: x * torch.sigmoid(x.mean(1, keepdim=True)),
    "another slope": lambda x: x * torch.sigmoid(1.702 * x),
    "another half": lambda x: x * (torch.erf(x * 0.70710678) + 1) * 0.4,
    "another shift": lambda x: x * F.relu6(x + 2) / 6,
    "a square": lambda x: x * x,
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_product_stays_one(tmp_path: Path, name: str) -> None:
    assert "Mul" in between(graph_of(OTHERS[name], tmp_path))
