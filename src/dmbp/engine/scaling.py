"""Gradients in float16: a scale for each row that puts them into its range, and whether they fit.

Of float16's 40 powers of two, gradients of ResNet50 take 25: the largest stand near the score, the
smallest are those of the first layers, and RMSProp divides each by its own size, so that all count
alike. Unscaled, most of them would be rounded to a few bits, or to zero. A power of two is undone
without a trace. Gradients grow as the terms do, a thousandfold in 50 iterations at a rate of 0.05,
and spread: the scale follows half of that way, so that neither end is lost.
"""

import torch
from torch import Tensor

from dmbp.engine.loss import Loss
from dmbp.engine.streams import by_stream
from dmbp.engine.tail import Tail

START = 2.0**8
"""Where the score's own largest gradient is put, before the first iteration."""

LARGEST = 65504.0
SMALLEST = 2.0**-25
"""Of float16: below, a number is rounded to zero."""

MAY_VANISH = 0.01
"""The share of gradients that may be rounded to zero."""


def scales_of(tail: Tail, loss: Loss, dtype: torch.dtype) -> Tensor:
    """The scale of every row, (rows,): one where gradients are not in float16."""
    if dtype != torch.float16:
        return torch.ones_like(tail.constant)
    parts = [gradient.abs().flatten(1).amax(1) for gradient in tail.gradients.values()]
    largest = torch.stack(parts).amax(0) * loss.largest_seed
    return torch.exp2(torch.log2(START / largest.clamp(1e-20, 1e20)).floor())


def followed(starts: Tensor, sizes: Tensor, terms: Tensor) -> Tensor:
    """The scale of every row at some terms, (2, rows); `sizes` keeps how large the first were."""
    size = terms.abs().sum(0)
    sizes.copy_(torch.where(sizes > 0, sizes, size))
    growth = (size / sizes.clamp(min=1e-30)).clamp(min=1.0)
    return starts * torch.exp2(-torch.floor(torch.log2(growth) / 2))


class GradientRange:
    """Counts, at masks that were learned, how gradients fit into float16; nothing asks the CPU.

    `largest` is the largest of all, times its row's scale, and `counts` are how many there are and
    how many of them vanish.
    """

    def __init__(self, scales: Tensor, loss: Loss) -> None:
        self.scales = loss.largest_seed * scales
        self.largest = scales.new_zeros(1)
        self.counts = scales.new_zeros(2, dtype=torch.int64)

    def see(self, gradient: Tensor) -> None:
        """Count a gradient of both streams, stacked, of the scores themselves."""
        size = by_stream(gradient).abs() * self.scales.view(-1, *(1,) * (gradient.dim() - 1))
        self.largest = torch.maximum(self.largest, size.max())
        present = size > 0
        self.counts = self.counts + torch.stack(
            [present.sum(), (present & (size < SMALLEST)).sum()]
        )

    def fits(self) -> Tensor:
        """Whether none was too large and few too small, as a tensor."""
        present, vanished = self.counts
        return (vanished <= MAY_VANISH * present) & (self.largest[0] <= LARGEST)
