"""The terms of a read-out: from the way back where it is known what steps add, else forward."""

import pytest
import torch
from torch import nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, plan_for, readout
from dmbp.linear import Linearizer, LinearNetwork
from tests import nets
from tests.engine.networks import Adding, Dense
from tests.tolerance import relative

KNOWN = [nets.MLP, nets.VGGLike, nets.ResidualNet, nets.FireNet, nets.LeakyNet, Dense]
OTHERS = [nets.SmoothNet, nets.SqueezeExciteNet, nets.TinyViT, Adding]


def network(model: type[nn.Module]) -> LinearNetwork:
    shape = (2, 7) if model is nets.MLP else (2, 3, 15, 16)
    inputs = torch.randn(shape, dtype=torch.float64)
    return Linearizer(model().double().eval()).linearize(inputs, target=[1, 2])


@pytest.mark.parametrize("model", [*KNOWN, *OTHERS])
def test_terms_are_those_of_masked_streams(
    model: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(model)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    engines = [kind(plan, initial_logits(plan), **settings) for kind in (CpuEngine, AutogradEngine)]
    for engine in engines:
        for _ in range(3):
            engine.step()
    expected = engines[1].readout().terms
    if model in KNOWN:
        monkeypatch.setattr(readout, "masked_streams", None)
    found = engines[0].readout().terms
    assert relative(found.positive, expected.positive) <= 1e-9
    assert relative(found.negative, expected.negative) <= 1e-9


def test_a_target_that_is_a_function() -> None:
    """Its tangent has a constant, which belongs to both streams."""
    model = nets.VGGLike().double().eval()
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    target = lambda outputs: outputs[1] - 0.5 * outputs[2] ** 2  # noqa: E731
    net = Linearizer(model).linearize(inputs, target=target)
    plan = plan_for(net)
    assert net.constant.abs().min() > 0
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    engines = [kind(plan, initial_logits(plan), **settings) for kind in (CpuEngine, AutogradEngine)]
    found, expected = (engine.readout().terms for engine in engines)
    assert relative(found.positive, expected.positive) <= 1e-9
