"""What a model in a file says about its input: how many images it takes, and of what size.

A program of `torch.export`, in a `.pt2` file or in memory, as a classifier.

    torch.export.save(torch.export.export(model.eval(), (images,)), "net.pt2")
    dmbp explain photo.jpg --model net.pt2

Its weights are inside and it runs as it was exported: on the side of its example images, and on any
number of images if the batch was a dynamic dimension (`dynamic_shapes=({0: Dim.AUTO},)`), else on
one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.linear.model.wrappers import OneAtATime, force_eval
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.process import silence_output


@dataclass(frozen=True)
class InputForm:
    """The shape of a model's input, None where any number will do."""

    batch: int | None
    channels: int | None
    height: int | None
    width: int | None

    def preprocessing(self) -> Preprocessing:
        """ImageNet's, at the side the model takes; the crop keeps its share of the photo."""
        usual = Preprocessing.for_channels(self.channels)
        side = self.height or self.width or usual.crop
        return replace(usual, crop=side, resize=round(side * usual.resize / usual.crop))


class ChannelsLast(nn.Module):
    """A model that takes images (batch, height, width, channels), for images as torch has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """The model's outputs."""
        return self.model(images.permute(0, 2, 3, 1))


def read_form(shapes: Sequence[Sequence[int | None]], source: str) -> InputForm:
    """The form of a model with inputs of these shapes; refused where photos cannot be its input."""
    if len(shapes) != 1:
        raise ModelError(f"{source} takes {len(shapes)} inputs; dmbp explains models of one")
    (shape,) = shapes
    if len(shape) != 4 or shape[1] not in (None, 1, 3):
        raise ModelError(
            f"{source} takes inputs of shape {_written(shape)}, not photos of shape (batch, 3, "
            "height, width)"
        )
    form = InputForm(*shape)
    if None not in (form.height, form.width) and form.height != form.width:
        raise ModelError(
            f"{source} takes images of {form.height}×{form.width} pixels; on the command line dmbp "
            "makes square ones"
        )
    return form


def classifier_of(module: nn.Module, form: InputForm, source: str) -> Classifier:
    """The classifier in a file, for any number of images."""
    if form.batch not in (None, 1):
        raise ModelError(
            f"{source} was exported for batches of {form.batch}; export it for one image, or with "
            "a dynamic batch dimension"
        )
    whole = OneAtATime(module) if form.batch == 1 else module
    force_eval(whole)
    return Classifier(source, whole, form.preprocessing())


def _written(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def program_file_classifier(path: Path) -> Classifier:
    """The classifier in a `.pt2` file."""
    return program_classifier(_loaded(path), str(path))


def program_classifier(program: ExportedProgram, source: str) -> Classifier:
    """The classifier that a program is; `source` is what to call it."""
    wanted = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = [_shape(node.meta.get("val")) for node in nodes if node.name in wanted]
    return classifier_of(program.module(), read_form(shapes, source), source)


def _loaded(path: Path) -> ExportedProgram:
    try:
        with silence_output():  # torch's remarks about its own format
            return torch.export.load(path)
    except Exception as error:  # a foreign file makes the reader raise almost anything
        raise ModelError(
            f"{path} is damaged, or no program that torch.export.save wrote"
        ) from error


def _shape(value: Any) -> list[int | None]:
    """The sizes of an example input, None where they are dynamic."""
    sizes: Any = getattr(value, "shape", ())
    return [size if isinstance(size, int) else size.node.maybe_as_int() for size in sizes]
