"""Many iterations at once are that many, one after the other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, Engine, plan_for
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.engine.plan.plan import ExecutionPlan
from dmbp.linear import Linearizer, LinearNetwork
from tests import nets
from tests.engine.backends import backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ITERATIONS = 8


def network(device: str) -> LinearNetwork:
    torch.manual_seed(0)
    inputs = torch.randn(2, 7).to(device)
    return Linearizer(nets.MLP().to(device).eval()).linearize(inputs, target=[1, 2])


def plain(plan: ExecutionPlan, logits: Any, **settings: Any) -> Engine:
    return GpuEngine(plan, logits, **settings, backend=backend(triton=False))


def fused(plan: ExecutionPlan, logits: Any, **settings: Any) -> Engine:
    return GpuEngine(plan, logits, **settings, backend=backend(triton=True))


@pytest.fixture(autouse=True)
def _few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the GPU engine's kept terms are full, and once half full."""
    monkeypatch.setattr("dmbp.engine.gpu.learning_state.HISTORY_SLOTS", 3)


@pytest.mark.parametrize("make", [AutogradEngine, CpuEngine, plain, fused])
def test_the_terms_before_each_iteration(make: Callable[..., Engine]) -> None:
    net = network("cpu" if make is CpuEngine else DEVICE)
    plan = plan_for(net)
    settings = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
    one, other = (make(plan, initial_logits(plan), **settings) for _ in range(2))
    called: list[None] = []
    past = one.learn(ITERATIONS, lambda: called.append(None))
    steps = [other.step() for _ in range(ITERATIONS)]
    assert torch.equal(past.positive, torch.stack([terms.positive for terms in steps]))
    assert torch.equal(past.negative, torch.stack([terms.negative for terms in steps]))
    assert torch.equal(past.nuisance[3], steps[3].nuisance)
    assert len(called) == ITERATIONS
    assert all(torch.equal(one.logits[name], other.logits[name]) for name in one.logits)
    assert one.is_in_range(past)


@pytest.mark.parametrize("make", [AutogradEngine, CpuEngine, plain, fused])
def test_no_iterations_have_no_terms(make: Callable[..., Engine]) -> None:
    net = network("cpu" if make is CpuEngine else DEVICE)
    plan = plan_for(net)
    engine = make(plan, initial_logits(plan), loss=OBJECTIVES["all"], learning_rate=0.05)
    past = engine.learn(0)
    assert past.positive.shape == past.negative.shape == past.nuisance.shape == (0, 2)
    assert engine.is_in_range(past)
