"""The state that the GPU engine's sites, loss head and program share, and the values they exchange.

`LearningState` lives on the device and is updated in place, so that a captured CUDA graph can be
replayed without arguments. Between instructions a value is one tensor with both streams stacked,
unless it is a `SharedValue` (equal in both streams) or a `SplitSum` (partial sums that the next
site adds up).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.engine.base import Loss
from dmbp.engine.gpu.half_precision import initial_gradient_scales
from dmbp.engine.plan.streams import channels_last
from dmbp.engine.plan.tail import Tail

HISTORY_SLOTS = 256
"""The number of iterations whose terms are kept on the device."""


@dataclass(frozen=True)
class SharedValue:
    """A value that depends on x alone: equal in both streams and stored once."""

    value: Tensor

    def stacked(self) -> Tensor:
        """Return the value repeated for both streams, in one tensor."""
        return torch.cat([self.value, self.value])


@dataclass(frozen=True)
class SplitSum:
    """Images as partial sums yet to be added up, (summands, rows, height, width, channels)."""

    summands: Tensor

    def total(self, dtype: torch.dtype) -> Tensor:
        """Return the sum as images in channels-last memory."""
        return self.summands.sum(0).permute(0, 3, 1, 2).to(dtype)


@dataclass(frozen=True)
class LearningState:
    """Settings of a run, and the state of the current iteration on the device.

    Gradients are multiplied by their row's scale and activations by the unit, so products of a
    gradient and an activation are multiplied by both (see `half_precision.py`).

    Attributes:
        loss: The loss to minimise.
        learning_rate: RMSProp's learning rate.
        dtype: The dtype of activations and gradients.
        unit: The factor by which activations are multiplied.
        initial_scales: Each row's gradient scale before the first iteration, (rows,).
        initial_sizes: |y⁺| + |y⁻| in the first iteration, (rows,); zero before it.
        scales: Each row's current gradient scale, (rows,).
        product_scales: scales · unit, (rows,).
        history: y⁺ and y⁻ of the latest iterations, (slots, 2, rows).
        history_start: The iteration in the first slot of `history`, (1,).
        seeds: The loss's gradient with respect to y⁺ and y⁻, times the scale: (rows,) for the
            active stream, or (2 · rows,) for both, positive rows first.
        active_streams: The stream that each row's gradient belongs to, 0 positive and 1 negative,
            (rows,); ignored if the loss has gradients in both.
        iteration: The number of iterations so far, (1,).
    """

    loss: Loss
    learning_rate: float
    dtype: torch.dtype
    unit: float
    initial_scales: Tensor
    initial_sizes: Tensor
    scales: Tensor
    product_scales: Tensor
    history: Tensor
    history_start: Tensor
    seeds: Tensor
    active_streams: Tensor
    iteration: Tensor

    @property
    def is_compact(self) -> bool:
        """Whether activations have 16 bits; Triton's sites then store masks in 16 bits too."""
        return self.dtype.itemsize == 2

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients are scaled: only float16 needs it."""
        return self.dtype == torch.float16

    @property
    def touches_both_streams(self) -> bool:
        """Whether both streams of a row may have a non-zero gradient."""
        return not self.loss.touches_one_stream

    @property
    def history_slots(self) -> int:
        """The number of iterations whose terms fit into `history`."""
        return len(self.history)

    @property
    def rows(self) -> int:
        """The number of rows learned together."""
        return len(self.active_streams)


def initial_state(
    loss: Loss, learning_rate: float, *, dtype: torch.dtype, unit: float, tail: Tail
) -> LearningState:
    """Return the state before the first iteration."""
    scales = initial_gradient_scales(tail, loss, dtype)
    rows, device = len(tail.constant), tail.constant.device
    return LearningState(
        loss=loss,
        learning_rate=learning_rate,
        dtype=dtype,
        unit=unit,
        initial_scales=scales,
        initial_sizes=torch.zeros_like(scales),
        scales=scales.clone(),
        product_scales=scales * unit,
        history=torch.zeros(HISTORY_SLOTS, 2, rows, device=device),
        history_start=torch.zeros(1, dtype=torch.int32, device=device),
        seeds=torch.zeros(rows if loss.touches_one_stream else 2 * rows, device=device),
        active_streams=torch.zeros(rows, dtype=torch.int32, device=device),
        iteration=torch.zeros(1, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class StreamGradient:
    """The gradient with respect to an instruction's output, as summands yet to be added up.

    Attributes:
        parts: Gradients from the instructions that read the output.
        tail: The score's gradient with respect to the output if the tail reads it, not yet
            multiplied by the seeds.
        split: One more part, which is itself a split sum.
    """

    parts: Sequence[Tensor]
    tail: Tensor | None = None
    split: SplitSum | None = None


def seeded_gradient(tail: Tensor, learning: LearningState) -> Tensor:
    """Return the score's gradient with respect to a value, multiplied by the seeds."""
    seeds = learning.seeds.view(-1, *(1,) * (tail.dim() - 1))
    whole = torch.cat([tail, tail]) if learning.touches_both_streams else tail
    return channels_last((whole * seeds).to(learning.dtype))
