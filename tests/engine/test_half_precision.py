"""Half precision: float32 sums, the unit of activations, and the scales of gradients."""

from typing import Any

import pytest
import torch
from torch import nn

from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import plan_for
from dmbp.engine.gpu.half_precision import (
    FLOAT16_MAX,
    FLOAT16_UNDERFLOW,
    FLOAT16_UNIT,
    INITIAL_MAGNITUDE,
    GradientRange,
    activation_unit,
    float32_accumulation,
    initial_gradient_scales,
    updated_gradient_scales,
)
from dmbp.engine.plan.tail import Tail
from dmbp.linear import Linearizer
from tests import nets

LOSS = OBJECTIVES["all"]
MATMUL: Any = torch.backends.cuda.matmul
REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


def switches() -> list[bool]:
    names = (*REDUCTIONS, *(f"{name}_split_k" for name in REDUCTIONS), "allow_fp16_accumulation")
    return [getattr(MATMUL, name) for name in names] + [torch.backends.cudnn.allow_tf32]


def _fail_inside() -> None:
    with float32_accumulation(allow_tf32=True):
        assert not any(getattr(MATMUL, name) for name in REDUCTIONS)
        assert not MATMUL.allow_fp16_accumulation
        assert torch.backends.cudnn.allow_tf32
        raise KeyError


@pytest.mark.parametrize("given", [True, False, (False, False)])
def test_the_callers_switches_are_restored(given: Any) -> None:
    with float32_accumulation(allow_tf32=False):  # restores the two switches that are set here
        MATMUL.allow_fp16_reduced_precision_reduction = given
        MATMUL.allow_fp16_accumulation = given is True
        before = switches()
        with pytest.raises(KeyError):
            _fail_inside()
        assert switches() == before


class AddsNumber(nn.Module):
    """Adds a number to activations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) + 3.0
        return torch.relu(x).mean((2, 3))


@pytest.mark.parametrize(
    ("model", "dtype", "unit"),
    [
        (nets.VGGLike, torch.float16, FLOAT16_UNIT),
        (nets.ResidualNet, torch.float16, FLOAT16_UNIT),
        (nets.FireNet, torch.float16, FLOAT16_UNIT),
        (AddsNumber, torch.float16, 1.0),
        (nets.TinyViT, torch.float16, 1.0),
        (nets.ResidualNet, torch.bfloat16, 1.0),
    ],
)
def test_the_unit_of_activations(model: type[nn.Module], dtype: torch.dtype, unit: float) -> None:
    """Activations are scaled only if it is known what every step adds to them."""
    net = Linearizer(model().eval()).linearize(torch.randn(1, 3, 16, 16), target=1)
    steps = [planned.step for planned in plan_for(net).program if not planned.is_constant]
    assert activation_unit(steps, dtype) == unit


def tail() -> Tail:
    small = torch.tensor([[1e-6, -3e-5], [0.25, 0.0], [0.0, 0.0]])
    return Tail({1: small, 2: small[:, :1] * 10}, torch.zeros(3))


def test_the_largest_gradient_of_every_row_starts_at_the_same_magnitude() -> None:
    scales = initial_gradient_scales(tail(), LOSS, torch.float16)
    largest = torch.tensor([3e-5, 2.5]) * LOSS.largest_seed * scales[:2]
    assert ((largest > INITIAL_MAGNITUDE / 2) & (largest <= INITIAL_MAGNITUDE)).all()
    assert torch.isfinite(scales).all()


def test_scales_are_powers_of_two() -> None:
    """Dividing by them is exact."""
    scales = initial_gradient_scales(tail(), LOSS, torch.float16)
    assert (torch.frexp(scales).mantissa == 0.5).all()


def test_gradients_in_bfloat16_are_not_scaled() -> None:
    assert (initial_gradient_scales(tail(), LOSS, torch.bfloat16) == 1).all()


def test_scales_shrink_with_the_root_of_the_terms_growth() -> None:
    """Row by row, relative to the first terms, and never above the initial scales."""
    starts, sizes = torch.tensor([4.0, 8.0]), torch.zeros(2)
    first = torch.tensor([[1.0, -2.0], [-1.0, 2.0]])
    assert updated_gradient_scales(starts, sizes, first).tolist() == [4.0, 8.0]
    assert sizes.tolist() == [2.0, 4.0]
    grown = first * torch.tensor([40.0, 0.1])
    # The first row's terms grew by 2^5.3, and its scale shrinks by 2^(5.3 / 2), rounded down.
    assert updated_gradient_scales(starts, sizes, grown).tolist() == [1.0, 8.0]
    assert sizes.tolist() == [2.0, 4.0]


def fit(*sizes: float, scale: float = 1.0) -> bool:
    """Return whether gradients of these sizes fit, for one row and both streams."""
    gradient_range = GradientRange(torch.tensor([scale]), LOSS)
    for size in sizes:
        gradient_range.record(torch.tensor([[0.0, 1.0], [-size, 1.0]]) / LOSS.largest_seed)
    return bool(gradient_range.fits())


def test_gradients_within_the_range_fit() -> None:
    assert fit(1.0, FLOAT16_MAX, FLOAT16_UNDERFLOW)
    assert fit(0.0, 0.0)


def test_one_gradient_that_is_too_large_does_not_fit() -> None:
    assert not fit(1.0, 2 * FLOAT16_MAX)
    assert fit(1.0, 2 * FLOAT16_MAX, scale=0.5)
    assert not fit(1.0, FLOAT16_MAX, scale=2.0)


def test_many_gradients_that_are_too_small_do_not_fit() -> None:
    assert not fit(1.0, FLOAT16_UNDERFLOW / 2)
    assert fit(*[1.0] * 99, FLOAT16_UNDERFLOW / 2)  # one of 300
    assert fit(1.0, FLOAT16_UNDERFLOW / 2, scale=2.0)
