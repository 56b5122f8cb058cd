"""Where the rows of an activation are.

They lie in one dimension, alone or folded with something else, as windows and heads are:

    size of the dimension = outer · rows · inner

so index i belongs to row (i // inner) mod rows.

Values of both streams, as fast engines pass them from step to step.

Forward, a value is both streams' rows in one tensor, the positive first, in channels-last order;
where an operation may mix up rows it is run on each stream alone, and its result is `StreamPair`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowLayout:
    """Rows in a `dimension`, `outer` and `inner` sizes that are folded into it around them."""

    dimension: int = 0
    outer: int = 1
    inner: int = 1

    @property
    def stacks(self) -> bool:
        """Whether two streams joined along dimension 0 are twice as many rows, in order."""
        return self.dimension == 0 and self.outer == 1

    def by_row(self, tensor: Tensor, rows: int) -> Tensor:
        """A tensor as (rows, elements); no copy where rows lie together in memory."""
        k = self.dimension
        parts = tensor.unflatten(k, (self.outer, rows, self.inner))
        return parts.movedim(k + 1, 0).flatten(1)

    def restored(self, by_row: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor of some shape from (rows, elements)."""
        k = self.dimension
        sizes = (*shape[:k], self.outer, self.inner, *shape[k + 1 :])
        return by_row.unflatten(1, sizes).movedim(0, k + 1).flatten(k, k + 2)

    def spread(self, by_row: Tensor, rank: int) -> Tensor:
        """A number for each row, shaped to multiply a tensor of some rank."""
        counted = by_row.repeat_interleave(self.inner).repeat(self.outer)
        return counted.view(-1, *(1,) * (rank - self.dimension - 1))


FIRST = RowLayout()
"""Rows are dimension 0, as in the inputs."""


@dataclass(frozen=True)
class StreamPair:
    """A value of each stream, where rows are not the first dimension or it is no tensor."""

    positive: Any
    negative: Any


Value = Tensor | StreamPair


@dataclass(frozen=True)
class Example:
    """The form of what a step gives, of one stream.

    `stacks`: whether the two streams' results are one tensor; `layout`: where the rows are, None
    where that is not known.
    """

    value: Any
    stacks: bool
    layout: RowLayout | None

    @property
    def is_image(self) -> bool:
        """Whether both streams' values are one batch of images."""
        return self.stacks and self.value.dim() == 4


def stacked(value: Value) -> Tensor:
    """A value as one tensor."""
    if isinstance(value, Tensor):
        return value
    return channels_last(torch.cat([value.positive, value.negative]))


def split_streams(value: Value) -> StreamPair:
    """A value as one of each stream."""
    return value if isinstance(value, StreamPair) else StreamPair(*value.chunk(2))


def channels_last(tensor: Tensor) -> Tensor:
    """A tensor in the order of memory that engines keep: channels last where it is an image."""
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()


def by_stream(tensor: Tensor) -> Tensor:
    """A stacked tensor as (2, rows, …); no copy."""
    return tensor.unflatten(0, (2, -1))
