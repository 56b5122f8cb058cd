"""In which unit activations are kept in float16."""

import pytest
import torch
from torch import nn

from dmbp.engine import plan_for
from dmbp.engine.gpu.half_precision import FLOAT16_UNIT, activation_unit
from dmbp.linear import Linearizer
from tests import nets


class Adding(nn.Module):
    """A number is added to activations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) + 3.0
        return torch.relu(x).mean((2, 3))


@pytest.mark.parametrize(
    ("model", "dtype", "unit"),
    [
        (nets.VGGLike, torch.float16, FLOAT16_UNIT),
        (nets.ResidualNet, torch.float16, FLOAT16_UNIT),
        (nets.FireNet, torch.float16, FLOAT16_UNIT),
        (Adding, torch.float16, 1.0),
        (nets.TinyViT, torch.float16, 1.0),
        (nets.ResidualNet, torch.bfloat16, 1.0),
    ],
)
def test_the_unit_of_a_network(model: type[nn.Module], dtype: torch.dtype, unit: float) -> None:
    net = Linearizer(model().eval()).linearize(torch.randn(1, 3, 16, 16), target=1)
    steps = [planned.step for planned in plan_for(net).program if not planned.is_constant]
    assert activation_unit(steps, dtype) == unit
