"""TF32 is off while dmbp computes, and as it was afterwards."""

import pytest
import torch
from torch import Tensor

import dmbp
from dmbp.linear.precision import full_precision
from tests import nets


def tf32() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def test_tf32_is_off_inside_and_back_outside() -> None:
    before = tf32()

    @full_precision()
    def fail() -> None:
        assert tf32() == (False, False)
        raise KeyboardInterrupt

    assert before == (True, False)  # torch's defaults, which the test would not notice otherwise
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert tf32() == before


def test_the_model_runs_in_full_precision() -> None:
    seen: list[tuple[bool, bool]] = []

    class Watched(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(tf32())
            return super().forward(x)

    before = tf32()
    dmbp.DMBP(Watched().eval(), iterations=1).explain(torch.randn(1, 3, 8, 8), target=0)
    assert seen
    assert all(found == (False, False) for found in seen)
    assert tf32() == before
