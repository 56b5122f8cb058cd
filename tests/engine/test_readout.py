"""The terms of a readout: from the backward pass if all constants are known, else forward."""

import pytest
import torch
from torch import nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, Logits, plan_for
from dmbp.engine.readout import gate_with_masks, read_out
from dmbp.linear import Linearizer
from tests import nets
from tests.engine.networks import Adding, Dense
from tests.tolerance import relative

KNOWN = [nets.MLP, nets.VGGLike, nets.ResidualNet, nets.FireNet, nets.LeakyNet, Dense]
UNKNOWN = [nets.SmoothNet, nets.SqueezeExciteNet, nets.TinyViT, Adding]
LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


@pytest.mark.parametrize("model", [*KNOWN, *UNKNOWN])
def test_terms_agree_with_the_autograd_engine(model: type[nn.Module]) -> None:
    """The forward pass, which needs the logits, runs only if a constant is not known."""
    shape = (2, 7) if model is nets.MLP else (2, 3, 15, 16)
    inputs = torch.randn(shape, dtype=torch.float64)
    net = Linearizer(model().double().eval()).linearize(inputs, target=[1, 2])
    plan = plan_for(net)
    reference = AutogradEngine(plan, initial_logits(plan), **LEARN)
    reference.learn(3)
    expected = reference.readout()
    logits = {name: tensor.detach() for name, tensor in reference.logits.items()}
    calls: list[None] = []

    def for_forward_pass() -> Logits:
        calls.append(None)
        return logits

    at_gate = gate_with_masks(logits, plan.kernels)
    found = read_out(plan, net.value(), for_forward_pass, at_gate)
    assert len(calls) == (0 if model in KNOWN else 1)
    assert relative(found.terms.positive, expected.terms.positive) <= 1e-9
    assert relative(found.terms.negative, expected.terms.negative) <= 1e-9
    assert relative(found.positive_map, expected.positive_map) <= 1e-9
    assert relative(found.negative_map, expected.negative_map) <= 1e-9


def test_the_constant_of_a_target_function_belongs_to_both_streams() -> None:
    model = nets.VGGLike().double().eval()
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    target = lambda outputs: outputs[1] - 0.5 * outputs[2] ** 2  # noqa: E731
    net = Linearizer(model).linearize(inputs, target=target)
    plan = plan_for(net)
    assert net.constant.abs().min() > 0
    engines = [kind(plan, initial_logits(plan), **LEARN) for kind in (CpuEngine, AutogradEngine)]
    found, expected = (engine.readout().terms for engine in engines)
    assert relative(found.positive, expected.positive) <= 1e-9
