"""What every engine promises: learning several iterations equals taking that many steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, Engine, plan_for
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.engine.plan.plan import ExecutionPlan
from dmbp.linear import Linearizer
from tests import nets
from tests.engine.backends import DEVICE, backend

ITERATIONS = 8
LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


def plan_on(device: str) -> ExecutionPlan:
    torch.manual_seed(0)
    inputs = torch.randn(2, 7).to(device)
    return plan_for(Linearizer(nets.MLP().to(device).eval()).linearize(inputs, target=[1, 2]))


def torch_engine(plan: ExecutionPlan, logits: Any, **settings: Any) -> Engine:
    return GpuEngine(plan, logits, **settings, backend=backend(triton=False))


def triton_engine(plan: ExecutionPlan, logits: Any, **settings: Any) -> Engine:
    return GpuEngine(plan, logits, **settings, backend=backend(triton=True))


@pytest.fixture(autouse=True)
def _short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the GPU engine's history fill up twice, and once in part."""
    monkeypatch.setattr("dmbp.engine.gpu.learning_state.HISTORY_SLOTS", 3)


@pytest.mark.parametrize("make", [AutogradEngine, CpuEngine, torch_engine, triton_engine])
def test_learn_equals_that_many_steps(make: Callable[..., Engine]) -> None:
    plan = plan_on("cpu" if make is CpuEngine else DEVICE)
    one, other = (make(plan, initial_logits(plan), **LEARN) for _ in range(2))
    calls: list[None] = []
    past = one.learn(ITERATIONS, lambda: calls.append(None))
    steps = [other.step() for _ in range(ITERATIONS)]
    assert torch.equal(past.positive, torch.stack([terms.positive for terms in steps]))
    assert torch.equal(past.negative, torch.stack([terms.negative for terms in steps]))
    assert torch.equal(past.nuisance[3], steps[3].nuisance)
    assert len(calls) == ITERATIONS
    assert all(torch.equal(one.logits[name], other.logits[name]) for name in one.logits)
    assert one.is_in_range(past)


@pytest.mark.parametrize("make", [AutogradEngine, CpuEngine, torch_engine, triton_engine])
def test_no_iterations_give_an_empty_history(make: Callable[..., Engine]) -> None:
    plan = plan_on("cpu" if make is CpuEngine else DEVICE)
    engine = make(plan, initial_logits(plan), **LEARN)
    past = engine.learn(0)
    assert past.positive.shape == past.negative.shape == past.nuisance.shape == (0, 2)
    assert engine.is_in_range(past)
