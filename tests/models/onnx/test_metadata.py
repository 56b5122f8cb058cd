"""What exporters note in ONNX files."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

from dmbp.models import Classifier, load_model
from dmbp.models.onnx.metadata import FileNotes, read_notes
from dmbp.targets import TargetContext, find_boxes
from dmbp.targets.boxes import find_layout

PEOPLE = {"author": "Ultralytics", "names": "{0: 'person', 1: 'bus'}", "task": "detect"}


def written(path: Path, notes: dict[str, str], shape: tuple[int, ...], side: int = 32) -> Path:
    """Write a file whose outputs are zero, of this shape, whatever the photo is."""
    size = helper.make_tensor("size", TensorProto.INT64, [4], [1, 1, 1, 1])
    zeros = helper.make_tensor(
        "zeros", TensorProto.FLOAT, shape, [0.0] * torch.zeros(shape).numel()
    )
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("ReduceMean", ["mean"], ["one"], keepdims=0),
        helper.make_node("Add", ["one", "zeros"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, side, side])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [size, zeros])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, notes)
    onnx.save(model, str(path))
    return path


def load(path: Path, notes: dict[str, str], shape: tuple[int, ...]) -> Classifier:
    return load_model(str(written(path / "net.onnx", notes, shape)))


@pytest.mark.parametrize(
    ("shape", "task"),
    [
        ((1, 6, 21), "detect"),
        ((1, 7, 21), "detect"),
        ((1, 38, 21), "segment"),
        ((1, 2), "classify"),
    ],
)
def test_ultralytics_files_say_how_photos_are_prepared(
    tmp_path: Path, shape: tuple[int, ...], task: str
) -> None:
    found = load(tmp_path, {**PEOPLE, "task": task}, shape)
    assert found.classes == ("person", "bus")
    photos = found.preprocessing
    assert (photos.mean, photos.std, photos.scale) == ((0.0,) * 3, (1.0,) * 3, 1.0)
    assert photos.fit == ("crop" if task == "classify" else "letterbox")
    assert found.origins["classes"] == found.origins["mean"] == "the file"


def test_notes_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    assert load(tmp_path, PEOPLE, (1, 9)).classes is None
    other = load(tmp_path, {"names": PEOPLE["names"], "task": "detect"}, (1, 2))
    assert other.classes == ("person", "bus")
    assert other.preprocessing.mean != (0.0,) * 3  # nobody else's images are known


def test_characters_of_a_recogniser(tmp_path: Path) -> None:
    found = load(tmp_path, {"character": "a\nb\nc"}, (1, 8, 5))
    assert found.classes == ("blank", "a", "b", "c", "␣")
    wide_space = load(tmp_path, {"character": "a\n\u3000\nc"}, (1, 8, 5))
    assert wide_space.classes == ("blank", "a", "␣", "c", "␣")


@pytest.mark.parametrize(
    "notes",
    [
        {"names": "__import__('os').system('true')"},
        {"names": "[" * 100_000},
        {"names": "{1: 'person'}", "imgsz": "[0, -3]"},
        {"imgsz": "[640]", "character": ""},
        {"names": "5", "task": "detect"},
    ],
)
def test_damaged_notes_are_left_out(tmp_path: Path, notes: dict[str, str]) -> None:
    model: Any = onnx.load(str(written(tmp_path / "net.onnx", notes, (1, 2))))
    assert read_notes(model) == FileNotes()


def test_numbers_of_masks_are_no_classes() -> None:
    outputs = torch.zeros(4 + 2 + 32, 21)
    outputs[:4] = 4.0
    outputs[5, 7] = 0.9
    outputs[6:] = 5.0  # of masks, and larger than every score

    def context(values: Tensor) -> TargetContext:
        return TargetContext(values, (32, 32), ("person", "bus"), "none")

    layout = find_layout(context(outputs))
    (box, *_) = find_boxes(outputs, (32, 32), layout)
    assert (box.candidate, box.index, round(box.probability, 3)) == (7, 1, 0.9)
    assert layout.scores(outputs).shape == (21, 2)
