"""A linear network that differs from its model is refused, and the message says where."""

import pytest
import torch
from torch import Tensor

import dmbp
from dmbp.errors import CaptureError, InexactCapture
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.gates import GATES, Gate
from tests import nets

IMAGES = (2, 3, 16, 16)


def test_a_wrong_rule_is_caught_and_located(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that is wrong by 0.1 % does not pass the exactness check."""
    wrong = Gate(lambda z, *_: ElementwiseLine((z > 0) * 1.001))
    monkeypatch.setitem(GATES, "aten.relu.default", wrong)
    monkeypatch.setitem(dmbp.linear.rules.table.RULES, "aten.relu.default", wrong)
    with pytest.raises(InexactCapture, match=r"differs from the model's by .*, first at 'relu'"):
        dmbp.linearize(nets.ReusedNet().eval(), torch.randn(IMAGES), target=0)


def test_a_random_model_is_refused() -> None:
    class Random(nets.FunctionalNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.rand(5)

    with pytest.raises(InexactCapture, match=r"aten\.rand.*draws random numbers"):
        dmbp.linearize(Random().eval(), torch.randn(IMAGES), target=0)


def test_a_random_model_with_one_number_for_each_image() -> None:
    class Weighted(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * x.mean((1, 2, 3)).relu()[:, None] + torch.rand(())

    with pytest.raises(CaptureError, match=r"aten\.rand.*draws random numbers"):
        dmbp.linearize(Weighted().eval(), torch.randn(IMAGES), target=1)


def test_infinite_values_are_refused() -> None:
    class Hidden(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.masked_fill(x < 0.5, float("-inf")).relu())

    with pytest.raises(CaptureError, match="computes with infinite values"):
        dmbp.linearize(Hidden().eval(), torch.randn(IMAGES), target=1)
