"""What the GPU engine's sites, scores and program share while masks are learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.engine.loss import Loss
from dmbp.engine.scaling import scales_of
from dmbp.engine.streams import in_order
from dmbp.engine.tail import Tail

PAST = 256
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
class Learning:
    """Settings, and the state of the current iteration, on the device.

    `past` are y⁺ and y⁻ of up to `PAST` iterations, each (2, rows), from iteration `since` on.
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


def start(loss: Loss, rate: float, *, dtype: torch.dtype, unit: float, tail: Tail) -> Learning:
    """The state before the first iteration."""
    scales = scales_of(tail, loss, dtype)
    rows, device = len(tail.constant), tail.constant.device
    return Learning(
        loss=loss,
        rate=rate,
        dtype=dtype,
        unit=unit,
        starts=scales,
        sizes=torch.zeros_like(scales),
        scales=scales.clone(),
        products=scales * unit,
        past=torch.zeros(PAST, 2, rows, device=device),
        since=torch.zeros(1, dtype=torch.int32, device=device),
        seeds=torch.zeros(rows if loss.touches_one_stream else 2 * rows, device=device),
        streams=torch.zeros(rows, dtype=torch.int32, device=device),
        iteration=torch.zeros(1, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class Gradient:
    """What a site is handed going back: parts to be added, and the tail's share of the seeds."""

    parts: Sequence[Tensor]
    tail: Tensor | None = None
    split: Split | None = None


def seeded(tail: Tensor, learning: Learning) -> Tensor:
    """The tail's gradient in a value, times what the loss asks."""
    seeds = learning.seeds.view(-1, *(1,) * (tail.dim() - 1))
    whole = torch.cat([tail, tail]) if learning.is_both else tail
    return in_order((whole * seeds).to(learning.dtype))
