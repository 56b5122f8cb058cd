"""Gradients of both streams at a gate, stacked: where its masks start, and past masks as learned.

On a GPU each is one kernel, if there is Triton: a dozen plain operations take longer than the
convolution behind them.
"""

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from dmbp.engine.gpu.state import GradientRange
from dmbp.engine.plan.streams import by_stream


def start_at_gate(gradient: Tensor, slope: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """The logits a gate starts from, and both gradients past it.

    A logit is ±`size`, by the sign of both gradients, or zero where they disagree.
    """
    if _is_for_triton(gradient):
        from dmbp.engine.gpu.triton.gates import started

        return started(gradient, slope, size)
    positive, negative = by_stream(gradient)
    agree = torch.sign(positive) == torch.sign(negative)
    logits = size * torch.sign(positive) * agree
    mask = torch.sigmoid(logits)
    return logits, torch.cat([positive * mask * slope, negative * (1 - mask) * slope])


def pass_gate(
    gradient: Tensor, slope: Tensor, logits: Tensor | None, seen: GradientRange | None = None
) -> Tensor:
    """Both gradients past a gate and, if it has logits, σ and 1−σ; what is to be `seen` sees."""
    if logits is not None and _is_for_triton(gradient):
        from dmbp.engine.gpu.triton.gates import past

        return past(gradient, logits, slope, seen)
    if seen is not None:
        seen.see(gradient)
    sloped = by_stream(gradient) * slope
    if logits is not None:
        mask = torch.sigmoid(logits).to(gradient.dtype)
        sloped = torch.stack([sloped[0] * mask, sloped[1] * (1 - mask)])
    return sloped.flatten(0, 1)


@cache
def has_triton() -> bool:
    """Whether there is Triton; a note where there is none."""
    if find_spec("triton") is not None:
        return True
    warnings.warn(
        "Triton is not installed: masks are learned by plain CUDA operations, several times slower",
        stacklevel=2,
    )
    return False


def _is_for_triton(gradient: Tensor) -> bool:
    return gradient.is_cuda and gradient.dtype == torch.float32 and has_triton()
