"""Loads programs of `torch.export`, from a `.pt2` file or from memory, as classifiers.

    torch.export.save(torch.export.export(model.eval(), (images,)), "net.pt2")
    dmbp explain photo.jpg --model net.pt2

`program/file.py` reads the file without running code that it may contain. A program contains its
weights and takes what it was exported for: images of its example's size, and
batches of any size if the batch was a dynamic dimension (`dynamic_shapes=({0: Dim.AUTO},)`);
otherwise it is run on one image after the other. ONNX files are subject to the same limits, so
`InputShape` and the functions that check it are used for both.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from dmbp.errors import ModelError, first_line
from dmbp.linear.model.wrappers import OneAtATime, force_eval
from dmbp.models.classifier import (
    ASSUMED_ORIGINS,
    Classifier,
    InputSize,
    Layout,
    Preprocessing,
    format_size,
    photo_size,
)
from dmbp.models.onnx.graph import SizeLimit, TooLarge
from dmbp.models.program.file import load_program
from dmbp.process import silence_output

MAX_SIDE = 1024
"""The longest side of the images that an exported model may ask for: a few bytes of a file must not
decide that an explanation takes hours and all memory. Modules from code may take 4096 pixels."""

MAX_BATCH = 16
"""The largest batch that a file may be exported for, because it then runs on as many copies."""


@dataclass(frozen=True)
class Ends:
    """Which of an ONNX file's inputs and outputs are meant, if it has several.

    Args:
        input: The input to explain; by default the only one that may be a photo, or the first one
            of floating point.
        output: The output to explain, by default the one that looks like scores.
        hold: The values of all other inputs by name, numbers or tensors. Inputs of floating point
            are zero by default.
    """

    input: str | None = None
    output: str | None = None
    hold: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def are_given(self) -> bool:
        """Whether anything is said."""
        return self.input is not None or self.output is not None or bool(self.hold)

    def before(self, other: "Ends") -> "Ends":
        """Return what is said here, and what the other says where nothing is."""
        return Ends(
            self.input or other.input, self.output or other.output, {**other.hold, **self.hold}
        )


@dataclass(frozen=True)
class StatedInput:
    """What is said about a file's input outside the file; None leaves it to the file.

    Args:
        size: The input's size, which must agree with the sizes that the file fixes.
        default_size: The size for a file that does not fix it.
        layout: Where the channels are.
        ends: Which inputs and outputs are meant.
    """

    size: InputSize | None = None
    default_size: InputSize | None = None
    layout: Layout | None = None
    ends: Ends = field(default_factory=Ends)


def program_file_classifier(
    path: Path, *, trust: bool = False, stated: StatedInput | None = None
) -> Classifier:
    """Return the classifier in a `.pt2` file; `trust` is that of `load_program`."""
    return program_classifier(load_program(path, trust=trust), str(path), stated)


def program_classifier(
    program: ExportedProgram, source: str, stated: StatedInput | None = None
) -> Classifier:
    """Return a program as a classifier; `source` is its name, also in error messages."""
    stated = stated or StatedInput()
    user_inputs = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = [_shape(node.meta.get("val")) for node in nodes if node.name in user_inputs]
    if stated.layout == "nhwc":
        shapes = [channels_first(shape) for shape in shapes]
    if len(shapes) == 1 and _is_no_photo(shapes[0]):
        return _classifier_of_arrays(_module_of(program, source), shapes[0], source)
    images = check_input_shape(shapes, source)
    module = _module_of(program, source)
    module = ChannelsLast(module) if stated.layout == "nhwc" else module
    sized = images.with_stated_size(stated, source)
    preprocessing = sized.preprocessing()
    shape = (images.batch or 1, len(preprocessing.mean), *preprocessing.size)
    _check_sizes(module, shape, source)
    return classifier_from_module(module, images, source, stated)


def _module_of(program: ExportedProgram, source: str) -> nn.Module:
    try:
        return program.module()
    except Exception as error:  # whatever torch raises about a graph that does not fit together
        reason = first_line(error)[:200]
        raise ModelError(f"{source} is not a program that runs: {reason}") from error


def _is_no_photo(shape: Sequence[int | None]) -> bool:
    """Return whether inputs of this shape are volumes, signals, vectors or images of many bands."""
    if len(shape) < 2 or None in shape[1:]:
        return False
    return len(shape) != 4 or (shape[1] not in (1, 3) and shape[3] not in (1, 3))


def _classifier_of_arrays(
    module: nn.Module, shape: Sequence[int | None], source: str
) -> Classifier:
    """Return a module whose inputs are not photos, and have this shape."""
    sizes = tuple(size for size in shape[1:] if size is not None)
    _check_sizes(module, (shape[0] or 1, *sizes), source)
    return Classifier(source, any_batch(module, shape[0], sizes, source), input_shape=sizes)


def any_batch(module: nn.Module, batch: int | None, sizes: Sequence[int], source: str) -> nn.Module:
    """Return a module that takes batches of any size.

    Args:
        module: The model in a file.
        batch: The only batch size that it takes, or None for any.
        sizes: The shape of one input, without the batch.
        source: The file's name.

    Raises:
        ModelError: If the batch is too large, or the model mixes the inputs of a batch.
    """
    force_eval(module)
    if batch is None:
        return module
    if batch > MAX_BATCH:
        raise ModelError(
            f"{source} was exported for batches of {batch}; export it for one input, or with a "
            "dynamic batch dimension"
        )
    if batch > 1:
        _check_rows(module, (batch, *sizes), source)
        warnings.warn(
            f"{source} was exported for batches of {batch}, so that it runs on {batch} copies of "
            "every input; a file for one input, or with a dynamic batch dimension, is faster",
            stacklevel=2,
        )
    return OneAtATime(module, copies=batch)


@torch.no_grad()
def _check_rows(module: nn.Module, shape: Sequence[int], source: str) -> None:
    """Raise a `ModelError` if an input's outputs depend on the other inputs of the batch."""
    dtype = next((weight.dtype for weight in module.parameters()), None)
    inputs = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    try:
        with silence_output():
            together, alone = module(inputs), module(inputs[:1].expand(*shape))
    except Exception:  # whatever torch raises is said when the model is run
        return
    for first, second in zip(tree_leaves(together), tree_leaves(alone), strict=True):
        if not isinstance(first, Tensor) or not first.is_floating_point() or not first.dim():
            continue
        if len(first) != shape[0] or not _all_close(torch.stack([first[0], *second]), second[0]):
            raise ModelError(
                f"{source} was exported for batches of {shape[0]}, whose inputs depend on each "
                "other or are treated differently: no network of one input stands for it"
            )


def _all_close(values: Tensor, expected: Tensor) -> bool:
    most = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((values - expected).abs() <= 1e-3 * most + 1e-6).all())


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

    def with_stated_size(self, stated: StatedInput, source: str) -> "InputShape":
        """Return the shape with the sizes that are stated where the model takes any.

        Raises:
            ModelError: If the model takes another size than the one stated.
        """
        own = (self.height, self.width)
        if stated.size is not None:
            pairs = zip(own, photo_size(stated.size), strict=True)
            if any(side not in (None, wanted) for side, wanted in pairs):
                sizes = "×".join("any" if side is None else str(side) for side in own)
                raise ModelError(
                    f"{source} takes images of {sizes} pixels (height×width), not "
                    f"{format_size(stated.size)}: leave out the size, or export the network for it"
                )
        size = stated.size if stated.size is not None else stated.default_size
        if size is None:
            return self
        height, width = photo_size(size)
        return replace(self, height=self.height or height, width=self.width or width)

    def preprocessing(self) -> Preprocessing:
        """Return ImageNet's preprocessing at the model's size.

        Rectangles get the whole photo, squeezed, because a crop would keep a strip of it.
        """
        default = Preprocessing.for_channels(self.channels)
        side = self.height or self.width or default.size[0]
        preprocessing = default.with_size((self.height or side, self.width or side))
        is_square = isinstance(preprocessing.crop, int)
        return preprocessing if is_square else replace(preprocessing, fit="squeeze")

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each setting of `preprocessing` comes from."""
        origins = ASSUMED_ORIGINS
        return origins if None in (self.height, self.width) else {**origins, "size": "the file"}


def check_input_shape(shapes: Sequence[Sequence[int | None]], source: str) -> InputShape:
    """Return the shape of a model's input, given the shapes of all its inputs.

    Raises:
        ModelError: If the model does not take exactly one input of photos.
    """
    if len(shapes) != 1:
        raise ModelError(f"{source} takes {len(shapes)} inputs; dmbp explains models with one")
    (shape,) = shapes
    if len(shape) != 4 or shape[1] not in (None, 1, 3):
        last = len(shape) == 4 and shape[3] in (1, 3)
        hint = "; if its channels come last, give --layout nhwc" if last else ""
        raise ModelError(
            f"{source} takes inputs of shape {_format(shape)}, not photos of shape (batch, 3, "
            f"height, width){hint}"
        )
    images = InputShape(*shape)
    if any(not 1 <= side <= MAX_SIDE for side in (images.height, images.width) if side is not None):
        raise ModelError(
            f"{source} takes images of {images.height or 'any'}×{images.width or 'any'} pixels; "
            f"dmbp explains model files for images up to {MAX_SIDE}×{MAX_SIDE} pixels"
        )
    return images


def _check_sizes(module: nn.Module, shape: Sequence[int], source: str) -> None:
    """Raise a `ModelError` if a tensor would be too large, by propagating shapes only."""
    dtype = next((weight.dtype for weight in module.parameters()), None)
    fake_tensors = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with silence_output(), torch.no_grad(), fake_tensors, SizeLimit():
            module(torch.empty(*shape, dtype=dtype))
    except TooLarge as error:
        raise ModelError(f"{source}: {error}") from error
    except Exception:  # whatever torch raises is said when the model is run
        return


def channels_first(shape: Sequence[int | None]) -> list[int | None]:
    """Return the shape of images (batch, height, width, channels) in torch's order."""
    return [shape[0], shape[3], *shape[1:3]] if len(shape) == 4 else list(shape)


def classifier_from_module(
    module: nn.Module, images: InputShape, source: str, stated: StatedInput | None = None
) -> Classifier:
    """Return an exported module as a classifier that takes batches of any size."""
    sized = images.with_stated_size(stated or StatedInput(), source)
    preprocessing, origins = sized.preprocessing(), images.origins
    sizes = (len(preprocessing.mean), *preprocessing.size)
    batched = any_batch(module, images.batch, sizes, source)
    if preprocessing.fit == "squeeze":
        origins = {**origins, "fit": "assumed, because the size is not square"}
    return Classifier(source, batched, preprocessing, origins=origins)


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
