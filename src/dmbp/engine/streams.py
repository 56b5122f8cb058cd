"""Values of both streams, as fast engines pass them from step to step.

Forward, a value is both streams' rows in one tensor, the positive first, in channels-last order;
where an operation may mix up rows it is run on each stream alone, and its result is `Apart`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.layout import Layout


@dataclass(frozen=True)
class Apart:
    """A value of each stream, where rows are not the first dimension or it is no tensor."""

    positive: Any
    negative: Any


Value = Tensor | Apart


@dataclass(frozen=True)
class Example:
    """The form of what a step gives, of one stream.

    `stacks`: whether the two streams' results are one tensor; `layout`: where the rows are, None
    where that is not known.
    """

    value: Any
    stacks: bool
    layout: Layout | None

    @property
    def is_image(self) -> bool:
        """Whether both streams' values are one batch of images."""
        return self.stacks and self.value.dim() == 4


def stacked(value: Value) -> Tensor:
    """A value as one tensor."""
    if isinstance(value, Tensor):
        return value
    return in_order(torch.cat([value.positive, value.negative]))


def apart(value: Value) -> Apart:
    """A value as one of each stream."""
    return value if isinstance(value, Apart) else Apart(*value.chunk(2))


def in_order(tensor: Tensor) -> Tensor:
    """A tensor in the order of memory that engines keep: channels last where it is an image."""
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()


def by_stream(tensor: Tensor) -> Tensor:
    """A stacked tensor as (2, rows, …); no copy."""
    return tensor.unflatten(0, (2, -1))
