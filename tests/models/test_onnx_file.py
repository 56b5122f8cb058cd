"""ONNX files: exports give the maps of the modules they were made of, in any spelling."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from benchmarks.real import photographs
from torch import nn

from dmbp.errors import ModelError, WeightsError
from dmbp.models import load_model
from dmbp.models.input_form import OneAtATime
from dmbp.models.torchvision_import import import_torchvision
from tests.models.test_program_file import same_map, small

onnx = pytest.importorskip("onnx")


def save(model: nn.Module, path: Path, side: int, *, dynamic: bool) -> Path:
    axes = {"images": {0: "batch"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is the old one, which needs no extra
        torch.onnx.export(
            model,
            (torch.zeros(1, 3, side, side),),
            path,
            dynamo=False,
            input_names=["images"],
            dynamic_axes=axes,
        )
    return path


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_real_squeezenet_in_onnx(shared: Path, tmp_path: Path, dynamic: bool) -> None:
    weights = shared / "models" / "squeezenet1_1_imagenet.safetensors"
    module = load_model("squeezenet1_1", weights=weights)
    images, classes = photographs(shared, module.preprocessing, 1)
    path = save(module.module, tmp_path / "net.onnx", 224, dynamic=dynamic)
    found = load_model(str(path))
    assert isinstance(found.module, OneAtATime) == (not dynamic)
    same_map(found, module.module, images, int(classes[0]))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_exports_of_other_architectures(tmp_path: Path, name: str) -> None:
    """With batch norm, shared activations and clipping; two images at once."""
    model = import_torchvision().models.get_model(name, weights=None, num_classes=5).eval()
    found = load_model(str(save(model, tmp_path / "net.onnx", 64, dynamic=True)))
    assert found.preprocessing.crop == 64
    same_map(found, model, torch.randn(2, 3, 64, 64), [1, 2])


def newer_spelling(opset: int) -> object:
    """What current exporters write: a mean with its axes as an input, a reshape with allowzero."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weight = torch.arange(24.0).sin().reshape(2, 3, 2, 2)
    constants = {"w": weight, "axes": torch.tensor([2, 3]), "sizes": torch.tensor([-1, 2])}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r", "axes"], ["m"], keepdims=1),
        helper.make_node("Reshape", ["m", "sizes"], ["s"], allowzero=1),
        helper.make_node("Identity", ["s"], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, ["batch", 3, 9, 9])],
        [helper.make_tensor_value_info("y", kind, ["batch", 2])],
        [numpy_helper.from_array(value.numpy(), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_newer_spellings(tmp_path: Path, opset: int) -> None:
    onnx.save(newer_spelling(opset), tmp_path / "net.onnx")
    found = load_model(str(tmp_path / "net.onnx"))
    model = nn.Sequential(
        nn.Conv2d(3, 2, 2, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    model[0].weight.data = torch.arange(24.0).sin().reshape(2, 3, 2, 2)
    images = torch.randn(3, 3, 9, 9)
    assert torch.allclose(found.module(images), model(images), atol=1e-6)
    same_map(found, model, images, 1)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    whole = save(small(), tmp_path / "net.onnx", 16, dynamic=False).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.onnx").write_text("hello")
    foreign = newer_spelling(20)
    foreign.graph.node[1].op_type = "Gelu"  # type: ignore[attr-defined]
    onnx.save(foreign, tmp_path / "gelu.onnx")
    passing = newer_spelling(20)
    del passing.graph.node[2].input[1]  # type: ignore[attr-defined]
    noop = onnx.helper.make_attribute("noop_with_empty_axes", 1)
    passing.graph.node[2].attribute.append(noop)  # type: ignore[attr-defined]
    onnx.save(passing, tmp_path / "noop.onnx")
    for name, sentence in [
        ("missing.onnx", "there is no model file"),
        ("cut.onnx", "is damaged, or no ONNX model"),
        ("text.onnx", "is damaged, or no ONNX model"),
        ("noop.onnx", "ReduceMean .* cannot be converted"),
        ("gelu.onnx", "onnx2torch cannot convert .*Gelu"),
    ]:
        with pytest.raises(ModelError, match=sentence):
            load_model(str(tmp_path / name))
    with pytest.raises(WeightsError, match="has its weights inside"):
        load_model(str(tmp_path / "net.onnx"), weights=Path("a.pth"))


@pytest.mark.parametrize("missing", ["onnx", "onnx2torch"])
def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    path = save(small(), tmp_path / "net.onnx", 16, dynamic=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModelError, match=r"needs the extra onnx: pip install dmbp\[onnx\]"):
        load_model(str(path))
