"""One operation of an ONNX file as it is called: its inputs, its attributes, its version.

A value is a tensor, or numbers where the file computes with sizes: a number for what ONNX calls a
scalar, a list for a vector. Numbers stay Python's, so that `torch.export` sees shapes and not
tensors, and a batch of any size stays one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

OnnxValue = Any
"""A tensor, a number, or a list of numbers."""

SHORT = 16
"""Longer vectors of integers are no sizes, but an index: those stay tensors."""


@dataclass(frozen=True)
class NodeCall:
    """An operation's inputs and attributes; new tensors are made for the device of `images`."""

    operation: str
    inputs: Sequence[OnnxValue]
    attributes: Mapping[str, Any]
    version: int
    images: Tensor
    asked: set[str] = field(default_factory=set[str])
    """The attributes that were looked at."""

    def given(self, position: int) -> bool:
        """Whether there is an input at this position."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the operation."""
        self.asked.add(name)
        return self.attributes.get(name, default)

    def tensor(self, position: int) -> Tensor:
        """An input as a tensor."""
        return as_tensor(self.inputs[position], self.images)

    def optional(self, position: int) -> Tensor | None:
        """An input as a tensor, None where there is none."""
        return self.tensor(position) if self.given(position) else None

    def setting(self, position: int, name: str, default: Any = None) -> Any:
        """Numbers that are an input in newer operation sets and an attribute in older ones."""
        if self.given(position):
            return as_numbers(self.inputs[position])
        return self.attribute(name, default)

    def precision(self, kind: int) -> torch.dtype:
        """A type of the file's; its floats are in the precision of the images."""
        dtype = _TYPES[kind]
        return self.images.dtype if dtype == torch.float32 else dtype


Implementation = Callable[[NodeCall], Any]
"""How an operation is computed."""


def as_tensor(value: OnnxValue, images: Tensor) -> Tensor:
    """Numbers as a tensor beside the images."""
    if isinstance(value, Tensor):
        return value
    first = value[0] if isinstance(value, list) and value else value
    dtype = images.dtype if isinstance(first, float) else None
    dtype = torch.int64 if isinstance(value, list) and not value else dtype
    return torch.tensor(value, dtype=dtype, device=images.device)


def as_numbers(value: OnnxValue) -> OnnxValue:
    """A tensor of constants as numbers."""
    return value.tolist() if isinstance(value, Tensor) else value


def settled(value: OnnxValue) -> OnnxValue:
    """A constant as numbers where it is a scalar or may be sizes, else as it is."""
    if not isinstance(value, Tensor) or value.dim() > 1:
        return value
    is_sizes = not value.is_floating_point() and value.numel() <= SHORT
    return value.tolist() if is_sizes or value.dim() == 0 else value


_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.int32,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float32,
    11: torch.float32,
    12: torch.int64,
    13: torch.int64,
    16: torch.float32,
}
"""ONNX's numbers for types; floats of any width are computed in the precision of the images."""
