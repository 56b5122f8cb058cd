"""A ReLU's masks and the max-pooling behind it: only pixels that win a window matter.

    pool(ReLU(z) ⊙ σ) = ReLU(z[winner]) ⊙ σ[winner]

So the masks are kept by window, a fraction of the pixels. Windows that share a winner hold copies
of its mask: each copy gets the gradient of all, and they stay equal.
"""

import torch
from torch import Tensor

from dmbp.engine.masked_site import MaskedSite
from dmbp.linear.choices import Gather
from dmbp.linear.piece import Piece


class PooledMaskedSite(MaskedSite):
    """The masks of x's winners, of every row and both streams."""

    def __init__(self, piece: Piece, pool: Gather, logits: Tensor, learning_rate: float) -> None:
        self._index = pool.index.flatten(2)
        self._before = logits

        def won(tensor: Tensor) -> Tensor:
            picked = tensor.expand(logits.shape).flatten(2).gather(2, self._index)
            return picked.view(pool.index.shape)

        super().__init__(Piece(won(piece.slope)), won(logits), learning_rate)
        self._scratch = self.logits.new_empty(2, self.logits[0].numel())
        self._first = _first_of_same(pool.index, logits[0, 0].numel())

    def learned(self) -> Tensor:
        """The scalars of all pixels; of those that win nothing, as they started."""
        flat = self._before.flatten(2).scatter(2, self._index, self.logits.flatten(2))
        return flat.view(self._before.shape)

    def _parts(self, row: int) -> list[slice]:
        return [slice(0, self.logits[row].numel())]

    def _combined(self, row: int, change: Tensor) -> Tensor:
        """The gradient of every winner, of all windows that it won."""
        if self._first is None:
            return change
        first = self._first[row]
        total = torch.zeros_like(change).index_add_(0, first, change)
        return torch.index_select(total, 0, first, out=change)


def _first_of_same(index: Tensor, pixels: int) -> Tensor | None:
    """For each window in the order of memory, the first that has its winner; None if all differ."""
    rows, channels = index.shape[:2]
    winner = index.flatten(2).transpose(1, 2) * channels  # (rows, windows, channels)
    winner = (winner + torch.arange(channels, device=index.device)).flatten(1)
    windows = torch.arange(winner.shape[1], device=index.device).expand(rows, -1)
    first = torch.full((rows, pixels * channels), winner.shape[1], device=index.device)
    first = first.scatter_reduce(1, winner, windows, "amin").gather(1, winner)
    return None if bool((first == windows).all()) else first
