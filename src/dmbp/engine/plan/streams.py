"""Activations of both streams, and the layout of a batch's rows in them.

In the forward pass a value holds the rows of both streams in one tensor, positive rows first, in
channels-last memory order. An operation that could mix rows runs on each stream separately, and its
result is a `StreamPair`.

A `RowLayout` says which dimension holds the rows. It may hold more than the rows, such as attention
windows or heads:

    size of the dimension = outer · rows · inner        index i belongs to row (i // inner) mod rows
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowLayout:
    """The dimension that holds the rows, between factors `outer` and `inner` of its size."""

    dimension: int = 0
    outer: int = 1
    inner: int = 1

    @property
    def stacks(self) -> bool:
        """Whether both streams, joined along dimension 0, keep this layout with twice the rows."""
        return self.dimension == 0 and self.outer == 1

    def by_row(self, tensor: Tensor, rows: int) -> Tensor:
        """Return a tensor as (rows, elements), as a view if each row is contiguous."""
        k = self.dimension
        parts = tensor.unflatten(k, (self.outer, rows, self.inner))
        return parts.movedim(k + 1, 0).flatten(1)

    def restore(self, by_row: Tensor, shape: Sequence[int]) -> Tensor:
        """Return (rows, elements) as a tensor of `shape`: the inverse of the method `by_row`."""
        k = self.dimension
        sizes = (*shape[:k], self.outer, self.inner, *shape[k + 1 :])
        return by_row.unflatten(1, sizes).movedim(0, k + 1).flatten(k, k + 2)

    def spread(self, by_row: Tensor, rank: int) -> Tensor:
        """Return one number per row in a shape that broadcasts against a tensor of `rank`."""
        by_index = by_row.repeat_interleave(self.inner).repeat(self.outer)
        return by_index.view(-1, *(1,) * (rank - self.dimension - 1))


ROWS_FIRST = RowLayout()
"""The layout of the inputs: dimension 0 holds the rows and nothing else."""


@dataclass(frozen=True)
class StreamPair:
    """One value for each stream, for results that cannot be stacked along dimension 0."""

    positive: Any
    negative: Any


Value = Tensor | StreamPair
"""The value of both streams: stacked in one tensor, or a pair."""


@dataclass(frozen=True)
class Example:
    """The form of a step's result in one stream.

    Attributes:
        value: A tensor (or nested tensors) of the result's shape; its numbers are meaningless.
        stacks: Whether both streams' results are stacked in one tensor.
        layout: The layout of the rows, None if unknown.
    """

    value: Any
    stacks: bool
    layout: RowLayout | None

    @property
    def is_image(self) -> bool:
        """Whether both streams are stacked in one batch of images."""
        return self.stacks and self.value.dim() == 4


def stacked(value: Value) -> Tensor:
    """Return both streams stacked in one tensor."""
    if isinstance(value, Tensor):
        return value
    return channels_last(torch.cat([value.positive, value.negative]))


def split_streams(value: Value) -> StreamPair:
    """Return the two streams separately."""
    return value if isinstance(value, StreamPair) else StreamPair(*value.chunk(2))


def channels_last(tensor: Tensor) -> Tensor:
    """Return a tensor in the engines' memory order: channels-last for images, else contiguous."""
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor.contiguous()


def by_stream(tensor: Tensor) -> Tensor:
    """View a stacked tensor as (2, rows, …)."""
    return tensor.unflatten(0, (2, -1))
