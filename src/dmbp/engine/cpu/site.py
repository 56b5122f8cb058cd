"""Stores and updates the masks of one activation on a CPU.

Let h = (slope ⊙ z + offset) ⊙ σ in the positive stream and ⊙ (1−σ) in the negative one, and g the
gradient with respect to h of the stream whose seed is not zero. The gradients are

                                 positive       negative
    with respect to the logit    g h (1−σ)      −g h σ
    with respect to z            g slope σ      g slope (1−σ)

so neither z nor a quotient is needed. RMSProp's update and both masks are computed right after,
in blocks that fit into the cache: one pass over memory instead of a dozen.

A ReLU followed by max-pooling needs masks only for the pixels that win a window:

    pool(ReLU(z) ⊙ σ) = ReLU(z[winner]) ⊙ σ[winner]

so `PooledSite` stores one mask per window, fewer than one per pixel. Windows that share a winner
store copies of its mask; each copy is updated with the gradient of all, so they stay equal.
"""

import torch
from torch import Tensor

from dmbp.engine.base import RMSPROP_DECAY, RMSPROP_EPSILON
from dmbp.engine.plan.streams import (
    RowLayout,
    StreamPair,
    Value,
    channels_last,
    split_streams,
    stacked,
)
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather

NEARLY_ZERO = 1e-36
"""The initial value of RMSProp's squared gradients, negligible beside its epsilon. The vectorised
square root is six times slower at zero, where closed gates would stay."""

BLOCK = 1 << 20
"""The number of elements processed at a time: six arrays of this size fit into the last-level
cache, and smaller blocks cost more calls."""


class MaskedSite:
    """The masks of one site, for every row and both streams."""

    def __init__(self, line: ElementwiseLine, logits: Tensor, learning_rate: float) -> None:
        self.logits = channels_last(logits.detach().clone())
        self._square = torch.full_like(self.logits, NEARLY_ZERO)
        self._sigma = torch.empty_like(self.logits)
        self._slope = channels_last(
            line.slope.to(self.logits.dtype).expand(self.logits.shape).clone()
        )
        self._offset = None if line.offset is None else channels_last(line.offset)
        self._rate = learning_rate
        self.masks = channels_last(torch.cat([self._slope, self._slope]))
        self._activation: Tensor | None = None
        self._gradient: Tensor | None = None
        rows = len(self.logits)
        self._scratch = self.logits.new_empty(2, min(BLOCK, self.logits[0].numel()))
        self._flat = [
            _by_row(tensor)
            for tensor in (self.logits, self._square, self._sigma, self._slope, self.masks)
        ]
        for row in range(rows):
            for part in self._blocks(row):
                self._update_masks(row, part)

    @property
    def is_slope_only(self) -> bool:
        """Whether the activation has no offset, so that the mask can include its slope."""
        return self._offset is None

    def forward(self, value: Value) -> Value:
        """Apply the activation and its masks to both streams."""
        h = channels_last(stacked(value)) * self.masks
        if self._offset is not None:
            h += torch.cat([self._offset * self._sigma, self._offset * (1 - self._sigma)])
        return self.store(h)

    def store(self, activation: Tensor) -> Tensor:
        """Store the activation's result, which the backward pass needs, and return it."""
        self._activation = activation
        return activation

    def backward(self, gradient: Tensor, streams: list[int], *, descend: bool) -> Tensor:
        """Return the gradient with respect to z, and update the masks.

        `gradient` is that of one stream per row, listed in `streams`. Without `descend`, the
        gradient of the masks is accumulated for the method `descend`.
        """
        assert self._activation is not None
        gradient = channels_last(gradient)
        result = torch.empty_like(gradient)
        flat_gradient, flat_result = _by_row(gradient), _by_row(result)
        activation = _by_row(self._activation)
        rows = len(gradient)
        masks = self._flat[4]
        for row, stream in enumerate(streams):
            stacked_row = stream * rows + row
            for part in self._blocks(row):
                g = flat_gradient[row, part]
                torch.mul(g, masks[stacked_row, part], out=flat_result[row, part])
                logit_gradient = torch.mul(
                    g, activation[stacked_row, part], out=self._scratch_block(0, g)
                )
                sigma = self._flat[2][row, part]
                if stream == 0:
                    logit_gradient.addcmul_(logit_gradient, sigma, value=-1)
                else:
                    logit_gradient.mul_(sigma).neg_()
                logit_gradient = self._row_gradient(row, logit_gradient)
                if descend:
                    self._descend(row, part, logit_gradient)
                else:
                    self._accumulate(row, part, logit_gradient)
        return result

    def descend(self) -> None:
        """Update the masks with the gradient accumulated over all backward passes."""
        if self._gradient is None:
            return
        flat = _by_row(self._gradient)
        for row in range(len(self.logits)):
            for part in self._blocks(row):
                self._descend(row, part, flat[row, part])
        self._gradient.zero_()

    def full_logits(self) -> Tensor:
        """Return the current logits in the activation's shape."""
        return self.logits

    def _row_gradient(self, row: int, logit_gradient: Tensor) -> Tensor:  # noqa: ARG002
        """Return the gradient of a row's logits from the gradients of its elements."""
        return logit_gradient

    def _accumulate(self, row: int, part: slice, logit_gradient: Tensor) -> None:
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.logits)
        _by_row(self._gradient)[row, part] += logit_gradient

    def _descend(self, row: int, part: slice, logit_gradient: Tensor) -> None:
        """Take one step of RMSProp with the gradient of the logits."""
        logits, square = (flat[row, part] for flat in self._flat[:2])
        square.mul_(RMSPROP_DECAY).addcmul_(logit_gradient, logit_gradient, value=1 - RMSPROP_DECAY)
        root = torch.sqrt(square, out=self._scratch_block(1, square)).add_(RMSPROP_EPSILON)
        logits.addcdiv_(logit_gradient, root, value=-self._rate)
        self._update_masks(row, part)

    def _update_masks(self, row: int, part: slice) -> None:
        """Compute both streams' masks, times the slope, from the logits."""
        logits, _, sigma, slope = (flat[row, part] for flat in self._flat[:4])
        masks = self._flat[4]
        positive, negative = masks[row, part], masks[row + len(self.logits), part]
        torch.sigmoid(logits, out=sigma)
        torch.mul(sigma, slope, out=positive)
        torch.sub(slope, positive, out=negative)

    def _scratch_block(self, which: int, like: Tensor) -> Tensor:
        return self._scratch[which][: len(like)]

    def _blocks(self, row: int) -> list[slice]:
        size = self.logits[row].numel()
        return [slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]


def _by_row(tensor: Tensor) -> Tensor:
    """View a tensor as (rows, elements) in memory order."""
    ordered = tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
    return ordered.view(len(tensor), -1)


class RowLayoutSite(MaskedSite):
    """The masks of an activation that is not a channels-last image or has another row layout.

    Masks are stored as (rows, elements), and activations are converted to that form and back. This
    copies nothing if each row is contiguous, as it always is for a single image.
    """

    def __init__(
        self,
        line: ElementwiseLine,
        logits: Tensor,
        learning_rate: float,
        *,
        layout: RowLayout,
        rows: int,
    ) -> None:
        self._layout = layout
        self._rows = rows
        self._shape = logits.shape
        slope = self._by_row(line.slope.expand(logits.shape))
        offset = None if line.offset is None else line.offset.expand(logits.shape)
        by_row = ElementwiseLine(slope, None if offset is None else self._by_row(offset))
        super().__init__(by_row, self._by_row(logits), learning_rate)

    def forward(self, value: Value) -> Value:
        """Apply the activation and its masks to both streams."""
        h = stacked(super().forward(self._both_by_row(value)))
        if self._layout.stacks:
            return h.view(2 * self._shape[0], *self._shape[1:])
        return StreamPair(*(self._restore(stream) for stream in h.chunk(2)))

    def backward(self, gradient: Tensor, streams: list[int], *, descend: bool) -> Tensor:
        """Return the gradient with respect to the input; see `MaskedSite.backward`."""
        by_row = super().backward(self._by_row(gradient), streams, descend=descend)
        return self._restore(by_row)

    def full_logits(self) -> Tensor:
        """Return the current logits in the activation's shape."""
        return self._restore(self.logits)

    def _both_by_row(self, value: Value) -> Tensor:
        if isinstance(value, Tensor) and self._layout.stacks:
            return value.reshape(2 * self._rows, -1)
        halves = split_streams(value)
        return torch.cat([self._by_row(halves.positive), self._by_row(halves.negative)])

    def _by_row(self, tensor: Tensor) -> Tensor:
        return self._layout.by_row(tensor, self._rows)

    def _restore(self, by_row: Tensor) -> Tensor:
        return self._layout.restore(by_row, self._shape)


class PooledSite(MaskedSite):
    """The masks of a ReLU followed by max-pooling, one per window."""

    def __init__(
        self, line: ElementwiseLine, pool: Gather, logits: Tensor, learning_rate: float
    ) -> None:
        self._index = pool.index.flatten(2)
        self._initial_logits = logits

        def at_winners(tensor: Tensor) -> Tensor:
            winners = tensor.expand(logits.shape).flatten(2).gather(2, self._index)
            return winners.view(pool.index.shape)

        super().__init__(ElementwiseLine(at_winners(line.slope)), at_winners(logits), learning_rate)
        self._scratch = self.logits.new_empty(2, self.logits[0].numel())
        self._first = _first_with_same_winner(pool.index, logits[0, 0].numel())

    def full_logits(self) -> Tensor:
        """Return the logits of all pixels; pixels that win no window keep their initial value."""
        flat = self._initial_logits.flatten(2).scatter(2, self._index, self.logits.flatten(2))
        return flat.view(self._initial_logits.shape)

    def _blocks(self, row: int) -> list[slice]:
        return [slice(0, self.logits[row].numel())]

    def _row_gradient(self, row: int, logit_gradient: Tensor) -> Tensor:
        """Sum the gradient of every winner over the windows it won."""
        if self._first is None:
            return logit_gradient
        first = self._first[row]
        total = torch.zeros_like(logit_gradient).index_add_(0, first, logit_gradient)
        return torch.index_select(total, 0, first, out=logit_gradient)


def _first_with_same_winner(index: Tensor, pixels: int) -> Tensor | None:
    """Return for each window the first one with the same winner, or None if all winners differ."""
    rows, channels = index.shape[:2]
    winner = index.flatten(2).transpose(1, 2) * channels  # (rows, windows, channels)
    winner = (winner + torch.arange(channels, device=index.device)).flatten(1)
    windows = torch.arange(winner.shape[1], device=index.device).expand(rows, -1)
    first = torch.full((rows, pixels * channels), winner.shape[1], device=index.device)
    first = first.scatter_reduce(1, winner, windows, "amin").gather(1, winner)
    return None if bool((first == windows).all()) else first
