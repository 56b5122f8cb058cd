"""Gradients at gates in one Triton kernel, against the same in plain PyTorch."""

import pytest
import torch
from torch import Tensor

from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine.gpu.half_precision import FLOAT16_MAX, FLOAT16_UNDERFLOW, GradientRange
from dmbp.engine.plan.kernels import Kernels
from dmbp.engine.plan.streams import channels_last
from tests.engine.backends import DEVICE
from tests.tolerance import relative

pytest.importorskip("triton")

from dmbp.engine.gpu.triton import mask_state
from dmbp.engine.gpu.triton.gate_gradients import pass_gate, start_at_gate

CLOSED_CODE, CODES_PER_UNIT = mask_state.CLOSED_CODE.value, mask_state.CODES_PER_UNIT.value
PLAIN = Kernels()
SHAPES = [(2, 5, 7, 6), (3, 1100), (2, 9, 4)]


def make_gate(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of both streams (some are zero), a gate's slope and its logits."""
    gradient = torch.randn(2 * shape[0], *shape[1:]) * (torch.rand(2 * shape[0], *shape[1:]) > 0.2)
    slope, logits = torch.rand(shape) > 0.5, 3 * torch.randn(shape)
    return gradient.to(DEVICE), slope.to(DEVICE), logits.to(DEVICE)


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_initial_logits(shape: tuple[int, ...], leaks: bool) -> None:
    gradient, slope, _ = make_gate(shape)
    slope = slope * 0.9 + 0.1 if leaks else slope
    logits, passed = start_at_gate(gradient, slope, 2.0)
    expected, expected_passed = PLAIN.start_at_gate(gradient, slope, 2.0)
    assert torch.equal(logits, expected)
    assert relative(passed, expected_passed) <= 1e-6


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_passing_a_gate_and_its_masks(shape: tuple[int, ...], leaks: bool) -> None:
    gradient, slope, logits = make_gate(shape)
    slope = slope * 0.9 + 0.1 if leaks else slope
    expected = PLAIN.pass_gate(gradient, slope, logits)
    assert relative(pass_gate(gradient, logits, slope, None), expected) <= 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_passing_masks_in_16_bits(shape: tuple[int, ...]) -> None:
    gradient, slope, logits = make_gate(shape)
    codes = mask_state.encode_logits(logits, slope)
    exact = channels_last((logits * CODES_PER_UNIT).round())
    assert ((codes == CLOSED_CODE) == ~channels_last(slope)).all()
    assert (codes.float() - exact)[slope].abs().max() <= 1
    expected = PLAIN.pass_gate(gradient, slope, codes.float() / CODES_PER_UNIT)
    assert relative(pass_gate(gradient, codes, None, None), expected) <= 1e-6


@pytest.mark.parametrize("largest", [1.0, 2 * FLOAT16_MAX])
@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_the_kernel_records_the_range_of_gradients(largest: float, lost: float) -> None:
    gradient, slope, logits = make_gate((2, 5, 7, 6))
    gradient = gradient.sign()
    gradient[torch.rand(gradient.shape, device=DEVICE) < lost] = FLOAT16_UNDERFLOW / 16
    gradient[3, 2, 1, 0] = largest
    scales = torch.tensor([2.0, 1.0], device=DEVICE)
    ranges = [GradientRange(scales, OBJECTIVES["all"]) for _ in range(2)]
    pass_gate(gradient, logits, slope, ranges[0])
    ranges[1].record(gradient)
    found, expected = ranges
    assert torch.equal(found.counts, expected.counts)
    assert torch.equal(found.largest, expected.largest)
    assert bool(found.fits()) == bool(expected.fits()) == (largest == 1.0 and lost == 0.0)
