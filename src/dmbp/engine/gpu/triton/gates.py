"""Triton kernels for gradients of both streams at a gate, outside the iterations.

Tensors are in one order and dense, the negative stream's elements after the positive's. A program
takes `BLOCK` elements of both.

Gradients of both streams at a gate in Triton: where masks start, and past learned ones.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu import state as scaling
from dmbp.engine.gpu.state import GradientRange
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.state import CLOSED, CLOSED_CODE, CODES, load, load_logit
from dmbp.engine.plan.streams import channels_last

SMALLEST = tl.constexpr(scaling.SMALLEST)


@triton.jit(do_not_specialize=["elements"])
def start_at_gate(passed, logits, gradient, slope, size, elements, BLOCK: tl.constexpr):
    """Logits by the signs of both gradients, which then pass the masks and the gate."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    k = tl.arange(0, BLOCK)
    ok = start + k < elements
    below = start + elements
    positive = load(gradient + start, k, ok)
    negative = load(gradient + below, k, ok)
    above = (positive > 0) & (negative > 0)
    under = (positive < 0) & (negative < 0)
    logit = tl.where(above, size, tl.where(under, -size, 0.0))
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = load(slope + start, k, ok)
    tl.store(logits + start + k, logit, ok)
    tl.store(passed + start + k, positive * mask * by, ok)
    tl.store(passed + below + k, negative * (1.0 - mask) * by, ok)


@triton.jit(do_not_specialize=["elements", "per_row", "rows"])
def pass_gate(
    passed, gradient, logits, slope, scales, largest, counts, elements, per_row, rows,
    HAS_SLOPE: tl.constexpr, IS_COMPACT: tl.constexpr, IS_SEEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both gradients past the masks and the gate, as logits are kept while they are learned.

    Where `IS_SEEN`, the largest is noted, times its row's scale, and it is counted how many are
    there and how many of them float16 would lose.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK
    k = tl.arange(0, BLOCK)
    ok = start + k < elements
    below = start + elements
    logit = load_logit(logits + start, k, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.where(logit < CLOSED, 1.0, 0.0)
    if HAS_SLOPE:
        by *= load(slope + start, k, ok)
    positive = load(gradient + start, k, ok)
    negative = load(gradient + below, k, ok)
    tl.store(passed + start + k, positive * mask * by, ok)
    tl.store(passed + below + k, negative * (1.0 - mask) * by, ok)
    if IS_SEEN:
        row = tl.minimum((start + k) // per_row, rows - 1)
        scale = tl.load(scales + row)
        one = tl.abs(positive) * scale
        other = tl.abs(negative) * scale
        present = (one > 0).to(tl.int64) + (other > 0).to(tl.int64)
        lost = ((one > 0) & (one < SMALLEST)).to(tl.int64)
        lost += ((other > 0) & (other < SMALLEST)).to(tl.int64)
        tl.atomic_max(largest, tl.max(tl.maximum(one, other), 0))
        tl.atomic_add(counts, tl.sum(present, 0))
        tl.atomic_add(counts + 1, tl.sum(lost, 0))


@triton.jit(do_not_specialize=["elements"])
def encode(codes, logits, is_open, elements, BLOCK: tl.constexpr):
    """Logits in 16 bits, those of closed gates marked."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    k = tl.arange(0, BLOCK)
    ok = start + k < elements
    code = load(logits + start, k, ok) * CODES
    code = tl.floor(tl.minimum(tl.maximum(code, -32766.0), 32766.0) + 0.5)
    code = tl.where(load(is_open + start, k, ok) != 0, code, 1.0 * CLOSED_CODE)
    tl.store(codes + start + k, code.to(tl.int16), ok)


BLOCK = 1024


def started(gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """The logits ±`size` or 0 that a gate starts from, and both gradients past it."""
    gradient = channels_last(gradient)
    passed = torch.empty_like(gradient)
    logits = torch.empty_like(gradient[: len(gradient) // 2])
    slope = _numbers(slope, logits)
    launch(
        start_at_gate, _programs(logits),
        passed, logits, gradient, slope, size, logits.numel(), BLOCK=BLOCK,
    )  # fmt: skip
    return logits, passed


def past(
    gradient: Tensor, logits: Tensor, slope: Tensor | None, seen: GradientRange | None
) -> Tensor:
    """Both gradients past masks and gate; logits as a `MaskState` keeps them or as they are.

    Without a slope the gate is what the logits mark as closed, or as open.
    """
    gradient, logits = channels_last(gradient), channels_last(logits)
    passed = torch.empty_like(gradient)
    numbers = gradient if slope is None else _numbers(slope, logits)
    noted = (gradient,) * 3 if seen is None else (seen.scales, seen.largest, seen.counts)
    launch(
        pass_gate, _programs(logits),
        passed, gradient, logits, numbers, *noted, logits.numel(), logits[0].numel(), len(logits),
        HAS_SLOPE=slope is not None, IS_COMPACT=logits.dtype == torch.int16,
        IS_SEEN=seen is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return passed


def encoded(logits: Tensor, is_open: Tensor) -> Tensor:
    """Logits in 16 bits, in the order of memory that engines keep."""
    logits = channels_last(logits.float())
    codes = torch.empty_like(logits, dtype=torch.int16)
    launch(
        encode, _programs(logits),
        codes, logits, _numbers(is_open, logits), logits.numel(), BLOCK=BLOCK,
    )  # fmt: skip
    return codes


def _numbers(slope: Tensor, like: Tensor) -> Tensor:
    """A slope for every element, in order; of gates that are open or closed, zeros and ones."""
    slope = channels_last(slope.expand(like.shape))
    return slope.view(torch.uint8) if slope.dtype == torch.bool else slope


def _programs(elements: Tensor) -> tuple[int]:
    return (-(-elements.numel() // BLOCK),)
