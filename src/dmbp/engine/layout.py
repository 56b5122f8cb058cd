"""Where the rows of an activation are.

They lie in one dimension, alone or folded with something else, as windows and heads are:

    size of the dimension = outer · rows · inner

so index i belongs to row (i // inner) mod rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
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


FIRST = Layout()
"""Rows are dimension 0, as in the inputs."""
