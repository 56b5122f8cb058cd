"""Elementwise Triton kernels for both streams' gradients at a gate, outside the iterations.

`start_at_gate` chooses the initial logits in the first backward pass through the network, and
`pass_gate` applies the learned masks when the linear maps are read out. Each fuses about a dozen
elementwise PyTorch operations into one pass over memory. All tensors are dense and have the same
memory order, and the negative stream's gradients follow the positive's; a program handles `BLOCK`
elements of both streams.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu import half_precision
from dmbp.engine.gpu.half_precision import GradientRange
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.mask_state import (
    BLOCK,
    CLOSED,
    block_grid,
    dense_slope,
    load_float32,
    load_logit,
)
from dmbp.engine.plan.streams import channels_last

FLOAT16_UNDERFLOW = tl.constexpr(half_precision.FLOAT16_UNDERFLOW)


@triton.jit(do_not_specialize=["elements"])
def start_at_gate_kernel(passed, logits, gradient, slope, size, elements, BLOCK: tl.constexpr):
    """Choose logits by the signs of both gradients, and pass the gradients through masks and gate.

    Reads `gradient` (2 · elements) and `slope`; writes `logits` and `passed` (2 · elements). A
    logit is ±`size` if both gradients have that sign, else 0.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    k = tl.arange(0, BLOCK)
    ok = start + k < elements
    negative_start = start + elements
    positive = load_float32(gradient + start, k, ok)
    negative = load_float32(gradient + negative_start, k, ok)
    both_positive = (positive > 0) & (negative > 0)
    both_negative = (positive < 0) & (negative < 0)
    logit = tl.where(both_positive, size, tl.where(both_negative, -size, 0.0))
    mask = 1.0 / (1.0 + tl.exp(-logit))
    slopes = load_float32(slope + start, k, ok)
    tl.store(logits + start + k, logit, ok)
    tl.store(passed + start + k, positive * mask * slopes, ok)
    tl.store(passed + negative_start + k, negative * (1.0 - mask) * slopes, ok)


@triton.jit(do_not_specialize=["elements", "per_row", "rows"])
def pass_gate_kernel(
    passed, gradient, logits, slope, scales, largest, counts, elements, per_row, rows,
    HAS_SLOPE: tl.constexpr, IS_COMPACT: tl.constexpr, RECORDS_RANGE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Pass both gradients through the masks and the gate.

    Reads `gradient` (2 · elements), `logits` (codes if `IS_COMPACT`) and, if `HAS_SLOPE`, `slope`;
    writes `passed` (2 · elements). If `RECORDS_RANGE`, it also updates `largest` and `counts` of a
    `GradientRange` atomically: the largest scaled gradient, how many are not zero, and how many of
    these float16 would round to zero.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    k = tl.arange(0, BLOCK)
    ok = start + k < elements
    negative_start = start + elements
    logit = load_logit(logits + start, k, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    slopes = tl.where(logit < CLOSED, 1.0, 0.0)
    if HAS_SLOPE:
        slopes *= load_float32(slope + start, k, ok)
    positive = load_float32(gradient + start, k, ok)
    negative = load_float32(gradient + negative_start, k, ok)
    tl.store(passed + start + k, positive * mask * slopes, ok)
    tl.store(passed + negative_start + k, negative * (1.0 - mask) * slopes, ok)
    if RECORDS_RANGE:
        row = tl.minimum((start + k) // per_row, rows - 1)
        scale = tl.load(scales + row)
        positive_size = tl.abs(positive) * scale
        negative_size = tl.abs(negative) * scale
        present = (positive_size > 0).to(tl.int64) + (negative_size > 0).to(tl.int64)
        lost = ((positive_size > 0) & (positive_size < FLOAT16_UNDERFLOW)).to(tl.int64)
        lost += ((negative_size > 0) & (negative_size < FLOAT16_UNDERFLOW)).to(tl.int64)
        tl.atomic_max(largest, tl.max(tl.maximum(positive_size, negative_size), 0))
        tl.atomic_add(counts, tl.sum(present, 0))
        tl.atomic_add(counts + 1, tl.sum(lost, 0))


def start_at_gate(gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Return a gate's initial logits, ±`size` or 0, and the gradients with respect to its input.

    `gradient` and the result have both streams' gradients, stacked.
    """
    gradient = channels_last(gradient)
    passed = torch.empty_like(gradient)
    logits = torch.empty_like(gradient[: len(gradient) // 2])
    slope = dense_slope(slope, logits)
    launch(
        start_at_gate_kernel, block_grid(logits),
        passed, logits, gradient, slope, size, logits.numel(), BLOCK=BLOCK,
    )  # fmt: skip
    return logits, passed


def pass_gate(
    gradient: Tensor, logits: Tensor, slope: Tensor | None, gradient_range: GradientRange | None
) -> Tensor:
    """Return both streams' gradients with respect to a gate's input, stacked.

    Args:
        gradient: Both streams' gradients with respect to the gate's output, stacked.
        logits: The logits as a `MaskState` stores them, or plain float32.
        slope: The gate's slope; None if the logits mark closed gates and open ones have slope one.
        gradient_range: Records how the gradients fit into float16, if given.
    """
    gradient, logits = channels_last(gradient), channels_last(logits)
    passed = torch.empty_like(gradient)
    slopes = gradient if slope is None else dense_slope(slope, logits)
    range_tensors = (
        (gradient,) * 3
        if gradient_range is None
        else (gradient_range.scales, gradient_range.largest, gradient_range.counts)
    )
    launch(
        pass_gate_kernel, block_grid(logits),
        passed, gradient, logits, slopes, *range_tensors,
        logits.numel(), logits[0].numel(), len(logits),
        HAS_SLOPE=slope is not None, IS_COMPACT=logits.dtype == torch.int16,
        RECORDS_RANGE=gradient_range is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return passed
