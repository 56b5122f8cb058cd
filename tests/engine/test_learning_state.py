"""Scales of gradients in float16, and whether they fit."""

import torch

from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine.gpu.half_precision import (
    FLOAT16_MAX,
    FLOAT16_UNDERFLOW,
    INITIAL_MAGNITUDE,
    GradientRange,
    initial_gradient_scales,
    updated_gradient_scales,
)
from dmbp.engine.plan.tail import Tail

LOSS = OBJECTIVES["all"]


def tail() -> Tail:
    small = torch.tensor([[1e-6, -3e-5], [0.25, 0.0], [0.0, 0.0]])
    return Tail({1: small, 2: small[:, :1] * 10}, torch.zeros(3))


def test_the_largest_gradient_of_every_row_starts_alike() -> None:
    scales = initial_gradient_scales(tail(), LOSS, torch.float16)
    largest = torch.tensor([3e-5, 2.5]) * LOSS.largest_seed * scales[:2]
    assert ((largest > INITIAL_MAGNITUDE / 2) & (largest <= INITIAL_MAGNITUDE)).all()
    assert torch.isfinite(scales).all()


def test_scales_are_undone_without_a_trace() -> None:
    scales = initial_gradient_scales(tail(), LOSS, torch.float16)
    assert (torch.frexp(scales).mantissa == 0.5).all()


def test_other_precisions_are_not_scaled() -> None:
    assert (initial_gradient_scales(tail(), LOSS, torch.bfloat16) == 1).all()


def test_scales_follow_the_terms_half_the_way() -> None:
    """Row by row, from the first terms on, and never above where they start."""
    starts, sizes = torch.tensor([4.0, 8.0]), torch.zeros(2)
    first = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
    assert updated_gradient_scales(starts, sizes, first).tolist() == [4.0, 8.0]
    assert sizes.tolist() == [2.0, 4.0]
    grown = first * torch.tensor([40.0, 0.1])
    # The first row's terms grew by 2^5.3, and its scale shrinks by 2^(5.3 / 2), rounded down.
    assert updated_gradient_scales(starts, sizes, grown).tolist() == [1.0, 8.0]
    assert sizes.tolist() == [2.0, 4.0]


def seen(*sizes: float, scale: float = 1.0) -> bool:
    """Whether gradients of these sizes fit, of one row, in both streams."""
    gradient_range = GradientRange(torch.tensor([scale]), LOSS)
    for size in sizes:
        gradient_range.record(torch.tensor([[0.0, 1.0], [-size, 1.0]]) / LOSS.largest_seed)
    return bool(gradient_range.fits())


def test_gradients_that_fit() -> None:
    assert seen(1.0, FLOAT16_MAX, FLOAT16_UNDERFLOW)
    assert seen(0.0, 0.0)


def test_one_that_is_too_large() -> None:
    assert not seen(1.0, 2 * FLOAT16_MAX)
    assert seen(1.0, 2 * FLOAT16_MAX, scale=0.5)
    assert not seen(1.0, FLOAT16_MAX, scale=2.0)


def test_many_that_are_too_small() -> None:
    assert not seen(1.0, FLOAT16_UNDERFLOW / 2)
    assert seen(*[1.0] * 99, FLOAT16_UNDERFLOW / 2)  # one of 300
    assert seen(1.0, FLOAT16_UNDERFLOW / 2, scale=2.0)
