"""Gradients of both streams at a gate in Triton: where masks start, and past learned ones."""

from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_gate_kernels
from dmbp.engine.scaling import GradientRange
from dmbp.engine.streams import in_order
from dmbp.engine.triton_launch import launch

kernels: Any = triton_gate_kernels  # whose arguments Triton reads in its own way

BLOCK = 1024


def started(gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """The logits ±`size` or 0 that a gate starts from, and both gradients past it."""
    gradient = in_order(gradient)
    passed = torch.empty_like(gradient)
    logits = torch.empty_like(gradient[: len(gradient) // 2])
    slope = _numbers(slope, logits)
    launch(
        kernels.start_at_gate, _programs(logits),
        passed, logits, gradient, slope, size, logits.numel(), BLOCK=BLOCK,
    )  # fmt: skip
    return logits, passed


def past(
    gradient: Tensor, logits: Tensor, slope: Tensor | None, seen: GradientRange | None
) -> Tensor:
    """Both gradients past masks and gate; logits as a `MaskState` keeps them or as they are.

    Without a slope the gate is what the logits mark as closed, or as open.
    """
    gradient, logits = in_order(gradient), in_order(logits)
    passed = torch.empty_like(gradient)
    numbers = gradient if slope is None else _numbers(slope, logits)
    noted = (gradient,) * 3 if seen is None else (seen.scales, seen.largest, seen.counts)
    launch(
        kernels.pass_gate, _programs(logits),
        passed, gradient, logits, numbers, *noted, logits.numel(), logits[0].numel(), len(logits),
        HAS_SLOPE=slope is not None, IS_COMPACT=logits.dtype == torch.int16,
        IS_SEEN=seen is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return passed


def encoded(logits: Tensor, is_open: Tensor) -> Tensor:
    """Logits in 16 bits, in the order of memory that engines keep."""
    logits = in_order(logits.float())
    codes = torch.empty_like(logits, dtype=torch.int16)
    launch(
        kernels.encode, _programs(logits),
        codes, logits, _numbers(is_open, logits), logits.numel(), BLOCK=BLOCK,
    )  # fmt: skip
    return codes


def _numbers(slope: Tensor, like: Tensor) -> Tensor:
    """A slope for every element, in order; of gates that are open or closed, zeros and ones."""
    slope = in_order(slope.expand(like.shape))
    return slope.view(torch.uint8) if slope.dtype == torch.bool else slope


def _programs(elements: Tensor) -> tuple[int]:
    return (-(-elements.numel() // BLOCK),)
