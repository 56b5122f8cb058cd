"""What a model can be asked about: a batch of finite numbers that fits its weights."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from dmbp.errors import InputError, ModelError
from dmbp.linear.exactness import TOLERANCE


def check_batch(inputs: Tensor) -> None:
    """Refuse what is no batch of finite numbers."""
    if not isinstance(inputs, Tensor) or inputs.layout is not torch.strided:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"inputs must be a dense tensor, not {type(inputs).__name__}")
    if inputs.dim() >= 2 and len(inputs) == 0:
        raise InputError(f"there is no image in inputs of shape {tuple(inputs.shape)}")
    if inputs.dim() < 2:
        raise InputError("inputs must be a tensor with a batch dimension, such as (1, 3, 224, 224)")
    if inputs.dtype not in TOLERANCE:
        raise InputError(
            f"inputs must be floating point, not {inputs.dtype}: there is no slope between whole "
            "numbers; if forward() converts them itself, give it inputs.float()"
        )
    if not torch.isfinite(inputs).all():
        raise InputError("the inputs contain NaN or infinity")


def check_fit(inputs: Tensor, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse inputs of another dtype or on another device than the model's `tensors`."""
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise ModelError(f"the model's {name!r} is not made yet: run the model once first")
        if tensor.is_inference():
            raise ModelError(
                "the model was made in torch.inference_mode(), which torch.export cannot "
                "capture; copy.deepcopy(model) outside of that mode can be explained"
            )
        if tensor.is_floating_point() and tensor.dtype != inputs.dtype:
            raise InputError(
                f"the inputs are {inputs.dtype} but the model's {name!r} is {tensor.dtype}; "
                f"use inputs.to({tensor.dtype})"
            )
        if tensor.device != inputs.device:
            raise InputError(
                f"the inputs are on {inputs.device} but the model's {name!r} is on "
                f"{tensor.device}; use inputs.to({str(tensor.device)!r})"
            )
