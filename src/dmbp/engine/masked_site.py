"""One activation's masks as a fast engine keeps them, and what an iteration does to them.

With h = (slope ⊙ z + offset) ⊙ σ at the positive stream and ⊙ (1−σ) at the negative one, and g the
gradient in h of the stream that the loss touches,

    gradient in the logit     g h (1−σ)   or   −g h σ
    gradient in z             g slope σ   or    g slope (1−σ)

so neither z nor a quotient is needed. RMSProp and both masks follow at once, a piece of memory that
fits the cache at a time: one pass over the tensors instead of a dozen.
"""

import torch
from torch import Tensor

from dmbp.engine.streams import Value, in_order, stacked
from dmbp.linear.piece import Piece

DECAY, EPSILON = 0.99, 1e-8
"""RMSProp's, as PyTorch has them."""

NEARLY_ZERO = 1e-36
"""Where RMSProp's squares start: nothing beside EPSILON. The vectorised root is six times slower at
zero itself, where closed gates would stay."""

PIECE = 1 << 20
"""Elements: six arrays of them stay in the last-level cache; smaller pieces cost more calls."""


class MaskedSite:
    """The masks of one site, of every row and both streams."""

    def __init__(self, piece: Piece, logits: Tensor, learning_rate: float) -> None:
        self.logits = in_order(logits.detach().clone())
        self._square = torch.full_like(self.logits, NEARLY_ZERO)
        self._sigma = torch.empty_like(self.logits)
        self._slope = in_order(piece.slope.to(self.logits.dtype).expand(self.logits.shape).clone())
        self._offset = None if piece.offset is None else in_order(piece.offset)
        self._rate = learning_rate
        self.masks = in_order(torch.cat([self._slope, self._slope]))
        self._activation: Tensor | None = None
        self._gradient: Tensor | None = None
        rows = len(self.logits)
        self._scratch = self.logits.new_empty(2, min(PIECE, self.logits[0].numel()))
        self._flat = [
            _by_row(tensor)
            for tensor in (self.logits, self._square, self._sigma, self._slope, self.masks)
        ]
        for row in range(rows):
            for part in self._parts(row):
                self._refresh(row, part)

    @property
    def is_plain(self) -> bool:
        """Whether the activation is a slope alone, which a mask can carry."""
        return self._offset is None

    def forward(self, value: Value) -> Value:
        """Both streams past the activation and their masks."""
        h = in_order(stacked(value)) * self.masks
        if self._offset is not None:
            h += torch.cat([self._offset * self._sigma, self._offset * (1 - self._sigma)])
        return self.keep(h)

    def keep(self, activation: Tensor) -> Tensor:
        """Remember what came out, which the backward pass needs."""
        self._activation = activation
        return activation

    def backward(self, gradient: Tensor, streams: list[int], *, descend: bool) -> Tensor:
        """The gradient in z; the masks descend at once, or gather their gradient for `descend`."""
        assert self._activation is not None
        gradient = in_order(gradient)
        result = torch.empty_like(gradient)
        flat_gradient, flat_result = _by_row(gradient), _by_row(result)
        activation = _by_row(self._activation)
        rows = len(gradient)
        masks = self._flat[4]
        for row, stream in enumerate(streams):
            here = stream * rows + row
            for part in self._parts(row):
                g = flat_gradient[row, part]
                torch.mul(g, masks[here, part], out=flat_result[row, part])
                change = torch.mul(g, activation[here, part], out=self._piece(0, g))
                sigma = self._flat[2][row, part]
                if stream == 0:
                    change.addcmul_(change, sigma, value=-1)
                else:
                    change.mul_(sigma).neg_()
                change = self._combined(row, change)
                if descend:
                    self._descend(row, part, change)
                else:
                    self._gather(row, part, change)
        return result

    def descend(self) -> None:
        """Move along the gradient gathered over several backward passes."""
        if self._gradient is None:
            return
        flat = _by_row(self._gradient)
        for row in range(len(self.logits)):
            for part in self._parts(row):
                self._descend(row, part, flat[row, part])
        self._gradient.zero_()

    def learned(self) -> Tensor:
        """The learned scalars as they stand."""
        return self.logits

    def _combined(self, row: int, change: Tensor) -> Tensor:  # noqa: ARG002
        """The gradient of a row's logits, from that of every element."""
        return change

    def _gather(self, row: int, part: slice, change: Tensor) -> None:
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.logits)
        _by_row(self._gradient)[row, part] += change

    def _descend(self, row: int, part: slice, change: Tensor) -> None:
        logits, square = (flat[row, part] for flat in self._flat[:2])
        square.mul_(DECAY).addcmul_(change, change, value=1 - DECAY)
        root = torch.sqrt(square, out=self._piece(1, square)).add_(EPSILON)
        logits.addcdiv_(change, root, value=-self._rate)
        self._refresh(row, part)

    def _refresh(self, row: int, part: slice) -> None:
        logits, _, sigma, slope = (flat[row, part] for flat in self._flat[:4])
        masks = self._flat[4]
        positive, negative = masks[row, part], masks[row + len(self.logits), part]
        torch.sigmoid(logits, out=sigma)
        torch.mul(sigma, slope, out=positive)
        torch.sub(slope, positive, out=negative)

    def _piece(self, which: int, like: Tensor) -> Tensor:
        return self._scratch[which][: len(like)]

    def _parts(self, row: int) -> list[slice]:
        size = self.logits[row].numel()
        return [slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE)]


def _by_row(tensor: Tensor) -> Tensor:
    """A view (rows, elements) in the order of memory."""
    ordered = tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
    return ordered.view(len(tensor), -1)
