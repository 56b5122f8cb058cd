"""Checks of a model's inputs and outputs, run before anything is explained.

Two properties cannot be read from a model's code: whether the images of a batch influence each
other, and whether an extra input has one entry for each image. Both are determined by running the
model on rearranged batches and comparing its outputs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from dmbp.errors import CaptureError, InputError, ModelError
from dmbp.linear.model.signature import ExtraInputs
from dmbp.precision import TOLERANCE, relative_error

NamedTensors = Iterable[tuple[str, Tensor]]
"""A model's parameters and buffers with their names."""

RunWith = Callable[[Tensor, ExtraInputs], Tensor]
"""Runs a model on images and extra inputs and returns its outputs (images, classes)."""


def check_batch(inputs: Tensor) -> None:
    """Raise an `InputError` unless `inputs` is a batch of finite floating-point numbers."""
    if not isinstance(inputs, Tensor) or inputs.layout is not torch.strided:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"inputs must be a dense tensor, not {type(inputs).__name__}")
    if inputs.dim() >= 2 and len(inputs) == 0:
        raise InputError(f"there is no image in inputs of shape {tuple(inputs.shape)}")
    if inputs.dim() < 2:
        raise InputError("inputs must be a tensor with a batch dimension, such as (1, 3, 224, 224)")
    if inputs.dtype not in TOLERANCE:
        raise InputError(
            f"inputs must be floating point, not {inputs.dtype}: integers have no gradient; if "
            "forward() converts them itself, pass inputs.float()"
        )
    if inputs.is_meta:
        raise InputError("inputs on the meta device have no data; create them on a real device")
    if not torch.isfinite(inputs).all():
        raise InputError("the inputs contain NaN or infinity")


def check_fit(inputs: Tensor, tensors: NamedTensors) -> None:
    """Check that the model's `tensors` are usable and have the inputs' dtype and device.

    Raises:
        InputError: If the inputs' dtype or device is not the model's.
        ModelError: If the model is not initialised, has no data, or was created in inference mode.
    """
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise ModelError(
                f"the model's {name!r} is not initialised yet: run the model once first"
            )
        if tensor.is_meta:
            raise ModelError(
                f"the model's {name!r} is on the meta device and has no data: load its weights "
                "first"
            )
        if tensor.layout is not torch.strided:
            raise ModelError(
                f"the model's {name!r} is a sparse tensor, which torch.export cannot capture; "
                "replace it by its dense form, .to_dense()"
            )
        if tensor.is_inference():
            raise ModelError(
                "the model was created in torch.inference_mode(), which torch.export cannot "
                "capture; copy.deepcopy(model) outside of that mode can be explained"
            )
        # Weights in eight bits are converted by forward(), because nothing computes with them.
        if tensor.dtype in TOLERANCE and tensor.dtype != inputs.dtype:
            raise InputError(
                f"the inputs are {inputs.dtype} but the model's {name!r} is {tensor.dtype}; "
                f"use inputs.to({tensor.dtype})"
            )
        if tensor.device != inputs.device:
            raise InputError(
                f"the inputs are on {inputs.device} but the model's {name!r} is on "
                f"{tensor.device}; use inputs.to({str(tensor.device)!r})"
            )


def check_scores(outputs: Any, images: int, tensors: NamedTensors) -> None:
    """Raise a `ModelError` unless `outputs` is a finite tensor (images, classes, …).

    `tensors` are the model's parameters and buffers, searched for the cause of NaN or infinity.
    """
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"the output to explain is a {type(outputs).__name__}; dmbp explains tensors of "
            "shape (batch, classes)"
        )
    if outputs.dim() < 2 or outputs.shape[0] != images or 0 in outputs.shape[1:]:
        raise ModelError(
            f"the model's output has shape {tuple(outputs.shape)} for {images} inputs; dmbp "
            "explains outputs of shape (batch, classes)"
        )
    if not torch.isfinite(outputs).all():
        raise ModelError(_where_not_finite(tensors))


def _where_not_finite(tensors: NamedTensors) -> str:
    for name, tensor in tensors:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f"the model's weights contain NaN or infinity, first in {name!r}"
    return "the model's output contains NaN or infinity for these inputs"


def check_independence(run: RunWith, inputs: Tensor, extra: ExtraInputs, outputs: Tensor) -> None:
    """Raise a `CaptureError` if the images of a batch influence each other's outputs.

    `outputs` are those of all images, run together.
    """
    first = extra.pick([0])
    try:
        # Others stand before and after it, because a recurrent network looks back.
        other = -inputs[:1].flip(-1)
        beside_another = run(torch.cat([other, inputs[:1], other, other]), first)[1:2]
        alone = run(inputs[:1], first)
    except ModelError:
        return  # the model takes only batches of the size that it was run with
    tolerance = TOLERANCE[inputs.dtype]
    if max(relative_error(other, alone) for other in (beside_another, outputs[:1])) > tolerance:
        raise CaptureError(
            "an image's output changes with the other images of its batch, so no explanation "
            "of one image exists; does forward() average or mix over the batch?"
        )


def infer_by_image(run: RunWith, inputs: Tensor, extra: ExtraInputs) -> ExtraInputs:
    """Return the extra inputs, with those marked that have one entry for each image.

    A tensor whose length is the number of images may mean something else: with five images, a
    weight for each of five classes must not be cut into images. A marking is right if copies of the
    first image, with its share of the extra inputs, reproduce its output, and if all images in
    reverse order reproduce theirs. If no marking is right, `extra` is returned unchanged.
    """
    if not extra.by_image:
        return extra
    copies = inputs[:1].expand(3 if len(inputs) == 2 else 2, *inputs.shape[1:])
    outputs = run(inputs, extra)
    first, reversed_outputs = outputs[:1].expand(len(copies), -1), outputs.flip(0)
    order = range(len(inputs) - 1, -1, -1)
    agreeing = (
        reading
        for reading in extra.readings()
        if _reproduces(run, copies, reading.pick([0]), first)
        and _reproduces(run, inputs.flip(0), reading.pick(order), reversed_outputs)
    )
    return next(agreeing, extra)


def _reproduces(run: RunWith, inputs: Tensor, extra: ExtraInputs, expected: Tensor) -> bool:
    try:
        outputs = run(inputs, extra)
    except ModelError:
        return False
    return relative_error(outputs, expected) <= TOLERANCE[inputs.dtype]
