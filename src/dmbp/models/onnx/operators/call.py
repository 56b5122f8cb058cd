"""The call of an ONNX node: its inputs, attributes and the version of the operator set.

A value is a tensor, or Python numbers if the file computes with sizes: a number for an ONNX scalar,
a list for a vector. With Python numbers `torch.export` sees shapes instead of tensors, and the
graph accepts a batch of any size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

OnnxValue = Any
"""A tensor, a number, or a list of numbers."""

FLOAT_TYPES = (1, 10, 11, 16)
"""ONNX's type codes of float32, float16, float64 and bfloat16."""

MAX_SHAPE_LENGTH = 16
"""Largest number of integers in a shape; a longer vector is an index and stays a tensor."""


@dataclass(frozen=True)
class NodeCall:
    """A node's inputs and attributes; new tensors get the device and precision of `images`."""

    operator: str
    inputs: Sequence[OnnxValue]
    attributes: Mapping[str, Any]
    version: int
    images: Tensor
    attributes_read: set[str] = field(default_factory=set[str])
    """The attributes that the implementation has read so far."""

    def has_input(self, position: int) -> bool:
        """Return whether there is an input at this position."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute and record that it was read."""
        self.attributes_read.add(name)
        return self.attributes.get(name, default)

    def tensor(self, position: int) -> Tensor:
        """Return an input as a tensor."""
        return as_tensor(self.inputs[position], self.images)

    def optional_tensor(self, position: int) -> Tensor | None:
        """Return an input as a tensor, or None if it is missing."""
        return self.tensor(position) if self.has_input(position) else None

    def setting(self, position: int, name: str, default: Any = None) -> Any:
        """Return a setting, an input in newer operator sets and an attribute in older ones."""
        if self.has_input(position):
            return as_numbers(self.inputs[position])
        return self.attribute(name, default)

    def torch_dtype(self, onnx_type: int) -> torch.dtype:
        """Return the dtype for an ONNX type code; floats get the precision of the images."""
        dtype = _DTYPES[onnx_type]
        return self.images.dtype if dtype == torch.float32 else dtype


Implementation = Callable[[NodeCall], Any]
"""Computes a node and returns a tensor, numbers, or a tuple if it has several outputs."""


def as_tensor(value: OnnxValue, images: Tensor) -> Tensor:
    """Return a value as a tensor on the device of the images, floats in their precision."""
    if isinstance(value, Tensor):
        return value
    first = value[0] if isinstance(value, list) and value else value
    dtype = images.dtype if isinstance(first, float) else None
    dtype = torch.int64 if isinstance(value, list) and not value else dtype
    return torch.tensor(value, dtype=dtype, device=images.device)


def as_numbers(value: OnnxValue) -> OnnxValue:
    """Return a constant tensor as Python numbers."""
    return value.tolist() if isinstance(value, Tensor) else value


def as_numbers_if_shape(value: OnnxValue) -> OnnxValue:
    """Return a constant as Python numbers if it is a scalar or may be a shape, else unchanged."""
    if not isinstance(value, Tensor) or value.dim() > 1:
        return value
    may_be_shape = not value.is_floating_point() and value.numel() <= MAX_SHAPE_LENGTH
    return value.tolist() if may_be_shape or value.dim() == 0 else value


_DTYPES = {
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
"""Dtypes by ONNX's type code; float32 stands for floats of any precision."""
