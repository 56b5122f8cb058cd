"""The masks of an activation that is no image in channels-last order, or whose rows are not first.

They are kept as (rows, elements), and activations are brought into that form and back: no copy
where rows lie together in memory, as those of a single image always do.
"""

import torch
from torch import Tensor

from dmbp.engine.layout import Layout
from dmbp.engine.masked_site import MaskedSite
from dmbp.engine.streams import Apart, Value, apart, stacked
from dmbp.linear.piece import Piece


class LaidOutSite(MaskedSite):
    """The masks of one site, by row."""

    def __init__(
        self, piece: Piece, logits: Tensor, learning_rate: float, *, layout: Layout, rows: int
    ) -> None:
        self._layout = layout
        self._rows = rows
        self._shape = logits.shape
        slope = self._by_row(piece.slope.expand(logits.shape))
        offset = None if piece.offset is None else piece.offset.expand(logits.shape)
        by_row = Piece(slope, None if offset is None else self._by_row(offset))
        super().__init__(by_row, self._by_row(logits), learning_rate)

    def forward(self, value: Value) -> Value:
        """Both streams past the activation and their masks."""
        h = stacked(super().forward(self._both_by_row(value)))
        if self._layout.stacks:
            return h.view(2 * self._shape[0], *self._shape[1:])
        return Apart(*(self._restored(stream) for stream in h.chunk(2)))

    def backward(self, gradient: Tensor, streams: list[int], *, descend: bool) -> Tensor:
        """The gradient in what was read; the masks move or gather."""
        past = super().backward(self._by_row(gradient), streams, descend=descend)
        return self._restored(past)

    def learned(self) -> Tensor:
        """The learned scalars as they stand."""
        return self._restored(self.logits)

    def _both_by_row(self, value: Value) -> Tensor:
        if isinstance(value, Tensor) and self._layout.stacks:
            return value.reshape(2 * self._rows, -1)
        halves = apart(value)
        return torch.cat([self._by_row(halves.positive), self._by_row(halves.negative)])

    def _by_row(self, tensor: Tensor) -> Tensor:
        return self._layout.by_row(tensor, self._rows)

    def _restored(self, by_row: Tensor) -> Tensor:
        return self._layout.restored(by_row, self._shape)
