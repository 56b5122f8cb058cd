"""Loads programs of `torch.export`, from a `.pt2` file or from memory, as classifiers.

    torch.export.save(torch.export.export(model.eval(), (images,)), "net.pt2")
    dmbp explain photo.jpg --model net.pt2

`program/file.py` reads the file without running code that it may contain. A program contains its
weights and takes what it was exported for: images of its example's size, and
batches of any size if the batch was a dynamic dimension (`dynamic_shapes=({0: Dim.AUTO},)`);
otherwise it is run on one image after the other. ONNX files are subject to the same limits, so
`InputShape` and the functions that check it are used for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from dmbp.errors import ModelError, first_line
from dmbp.linear.model.wrappers import OneAtATime, force_eval
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.onnx.graph import SizeLimit, TooLarge
from dmbp.models.program.file import load_program
from dmbp.process import silence_output

MAX_SIDE = 1024
"""The longest side of the images that an exported model may ask for: a few bytes of a file must not
decide that an explanation takes hours and all memory. Modules from code may take 4096 pixels."""


def program_file_classifier(path: Path, *, trust: bool = False) -> Classifier:
    """Return the classifier in a `.pt2` file; `trust` is that of `load_program`."""
    return program_classifier(load_program(path, trust=trust), str(path))


def program_classifier(program: ExportedProgram, source: str) -> Classifier:
    """Return a program as a classifier; `source` is its name, also in error messages."""
    user_inputs = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = [_shape(node.meta.get("val")) for node in nodes if node.name in user_inputs]
    images = check_input_shape(shapes, source)
    try:
        module = program.module()
    except Exception as error:  # whatever torch raises about a graph that does not fit together
        reason = first_line(error)[:200]
        raise ModelError(f"{source} is not a program that runs: {reason}") from error
    _check_sizes(module, images, source)
    return classifier_from_module(module, images, source)


def _shape(value: Any) -> list[int | None]:
    """Return the sizes of an example input, with None for dynamic ones."""
    sizes: Any = getattr(value, "shape", ())
    return [size if isinstance(size, int) else size.node.maybe_as_int() for size in sizes]


@dataclass(frozen=True)
class InputShape:
    """The shape of the images that an exported model takes; None stands for any size."""

    batch: int | None
    channels: int | None
    height: int | None
    width: int | None

    def preprocessing(self) -> Preprocessing:
        """Return ImageNet's preprocessing scaled to the model's side length."""
        default = Preprocessing.for_channels(self.channels)
        side = self.height or self.width or default.crop
        return replace(default, crop=side, resize=round(side * default.resize / default.crop))


def check_input_shape(shapes: Sequence[Sequence[int | None]], source: str) -> InputShape:
    """Return the shape of a model's input, given the shapes of all its inputs.

    Raises:
        ModelError: If the model does not take exactly one input of square photos.
    """
    if len(shapes) != 1:
        raise ModelError(f"{source} takes {len(shapes)} inputs; dmbp explains models with one")
    (shape,) = shapes
    if len(shape) != 4 or shape[1] not in (None, 1, 3):
        raise ModelError(
            f"{source} takes inputs of shape {_format(shape)}, not photos of shape (batch, 3, "
            "height, width)"
        )
    images = InputShape(*shape)
    if any(not 1 <= side <= MAX_SIDE for side in (images.height, images.width) if side is not None):
        raise ModelError(
            f"{source} takes images of {images.height or 'any'}×{images.width or 'any'} pixels; "
            f"dmbp explains model files for images up to {MAX_SIDE}×{MAX_SIDE} pixels"
        )
    if None not in (images.height, images.width) and images.height != images.width:
        raise ModelError(
            f"{source} takes images of {images.height}×{images.width} pixels; on the command line "
            "dmbp only makes square ones"
        )
    return images


def _check_sizes(module: nn.Module, images: InputShape, source: str) -> None:
    """Raise a `ModelError` if a tensor would be too large, by propagating shapes only."""
    preprocessing = images.preprocessing()
    side = preprocessing.crop
    dtype = next((weight.dtype for weight in module.parameters()), None)
    fake_tensors = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with silence_output(), torch.no_grad(), fake_tensors, SizeLimit():
            module(torch.empty(images.batch or 1, len(preprocessing.mean), side, side, dtype=dtype))
    except TooLarge as error:
        raise ModelError(f"{source}: {error}") from error
    except Exception:  # whatever torch raises is said when the model is run
        return


def classifier_from_module(module: nn.Module, images: InputShape, source: str) -> Classifier:
    """Return an exported module as a classifier that takes batches of any size."""
    if images.batch not in (None, 1):
        raise ModelError(
            f"{source} was exported for batches of {images.batch}; export it for one image, or "
            "with a dynamic batch dimension"
        )
    batched = OneAtATime(module) if images.batch == 1 else module
    force_eval(batched)
    return Classifier(source, batched, images.preprocessing())


class ChannelsLast(nn.Module):
    """Wraps a model that takes images (batch, height, width, channels), to take torch's order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the model's outputs for images (batch, channels, height, width)."""
        return self.model(images.permute(0, 2, 3, 1))


def _format(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
