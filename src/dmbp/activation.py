"""From a model's outputs to probabilities."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from dmbp.errors import InputError
from dmbp.names import known

Activation = Literal["softmax", "sigmoid", "none"] | Callable[[Tensor], Tensor]
"""By name, or a function of outputs (…, classes)."""


def _softmax(outputs: Tensor) -> Tensor:
    """Over the classes; a single output is a yes or no, and softmax would make it 1."""
    return outputs.softmax(-1) if outputs.shape[-1] > 1 else outputs.sigmoid()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,  # one class is right
    "sigmoid": torch.sigmoid,  # several may be
    "none": lambda outputs: outputs,  # probabilities already
}


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """The function that an activation stands for."""
    if callable(activation):
        return activation
    if not isinstance(activation, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"an activation is a name or a function, not {activation!r}")
    known("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]
