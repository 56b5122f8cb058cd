"""Gradients in float16: a scale for each row that puts them into its range, and whether they fit.

Of float16's 40 powers of two, gradients of ResNet50 take 25: the largest stand near the score, the
smallest are those of the first layers, and RMSProp divides each by its own size, so that all count
alike. Unscaled, most of them would be rounded to a few bits, or to zero. A power of two is undone
without a trace. Gradients grow as the terms do, a thousandfold in 50 iterations at a rate of 0.05,
and spread: the scale follows half of that way, so that neither end is lost.

What the GPU engine's sites, scores and program share while masks are learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.engine.base import Loss
from dmbp.engine.plan.streams import by_stream, channels_last
from dmbp.engine.plan.tail import Tail

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


HISTORY_SLOTS = 256
"""Iterations whose terms are kept on the device."""


@dataclass(frozen=True)
class Shared:
    """A value that x alone decides: the same in both streams, kept once."""

    value: Tensor


@dataclass(frozen=True)
class Split:
    """Images as summands still to be added: (summands, rows, height, width, channels)."""

    summands: Tensor

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The sum, in channels-last order."""
        return self.summands.sum(0).permute(0, 3, 1, 2).to(dtype)


@dataclass(frozen=True)
class LearningState:
    """Settings, and the state of the current iteration, on the device.

    `past` are y⁺ and y⁻ of up to `HISTORY_SLOTS` iterations, each (2, rows), from iteration
    `since` on.
    `seeds` is what the loss asks, times the row's scale: of the stream that `streams` names,
    (rows,), or of both in turn, (2 · rows,), where `is_both`. All gradients carry their row's
    scale, a power of two that follows the terms from where it `starts` (`scaling`; `sizes` are
    those of the first terms), activations a `unit` (`units`), and what is a product of both carries
    both (`products`). `dtype` is that of activations and gradients.
    """

    loss: Loss
    rate: float
    dtype: torch.dtype
    unit: float
    starts: Tensor
    sizes: Tensor
    scales: Tensor
    products: Tensor
    past: Tensor
    since: Tensor
    seeds: Tensor
    streams: Tensor
    iteration: Tensor

    @property
    def is_compact(self) -> bool:
        """Whether masks are kept in 16 bits, as activations are."""
        return self.dtype.itemsize == 2

    @property
    def is_scaled(self) -> bool:
        """Whether gradients need a scale."""
        return self.dtype == torch.float16

    @property
    def is_both(self) -> bool:
        """Whether both streams of a row have a gradient."""
        return not self.loss.touches_one_stream

    @property
    def rows(self) -> int:
        """Rows learned together."""
        return len(self.streams)


def start(loss: Loss, rate: float, *, dtype: torch.dtype, unit: float, tail: Tail) -> LearningState:
    """The state before the first iteration."""
    scales = scales_of(tail, loss, dtype)
    rows, device = len(tail.constant), tail.constant.device
    return LearningState(
        loss=loss,
        rate=rate,
        dtype=dtype,
        unit=unit,
        starts=scales,
        sizes=torch.zeros_like(scales),
        scales=scales.clone(),
        products=scales * unit,
        past=torch.zeros(HISTORY_SLOTS, 2, rows, device=device),
        since=torch.zeros(1, dtype=torch.int32, device=device),
        seeds=torch.zeros(rows if loss.touches_one_stream else 2 * rows, device=device),
        streams=torch.zeros(rows, dtype=torch.int32, device=device),
        iteration=torch.zeros(1, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class StreamGradient:
    """What a site is handed going back: parts to be added, and the tail's share of the seeds."""

    parts: Sequence[Tensor]
    tail: Tensor | None = None
    split: Split | None = None


def seeded(tail: Tensor, learning: LearningState) -> Tensor:
    """The tail's gradient in a value, times what the loss asks."""
    seeds = learning.seeds.view(-1, *(1,) * (tail.dim() - 1))
    whole = torch.cat([tail, tail]) if learning.is_both else tail
    return channels_last((whole * seeds).to(learning.dtype))
