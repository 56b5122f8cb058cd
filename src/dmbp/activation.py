"""From a model's outputs to probabilities."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from dmbp.names import known

Activation = Literal["softmax", "sigmoid"] | Callable[[Tensor], Tensor]
"""By name, or a function of outputs (images, classes)."""


def _softmax(outputs: Tensor) -> Tensor:
    return outputs.softmax(1)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,  # one class is right
    "sigmoid": torch.sigmoid,  # several may be
}


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """The function that an activation stands for."""
    if not isinstance(activation, str):
        return activation
    known("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]
