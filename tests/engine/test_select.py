"""Which engine a network gets, by its device, precision and row layout."""

import pytest
import torch

from dmbp.attribution.dmbp import DMBP
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, engine_for, plan_for, prepare
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.errors import InputError
from dmbp.linear import Linearizer
from tests import nets
from tests.engine.backends import DEVICE
from tests.engine.networks import Twice
from tests.tolerance import relative

LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


def test_the_engine_for_a_device_and_precision() -> None:
    model, inputs = nets.MLP().to(DEVICE).eval(), torch.randn(2, 7).to(DEVICE)
    plan = plan_for(Linearizer(model).linearize(inputs, target=[1, 2]))
    engine = engine_for(plan, initial_logits(plan), **LEARN)
    assert isinstance(engine, CpuEngine if DEVICE == "cpu" else GpuEngine)
    if DEVICE == "cpu":
        for precision in ("float16", "bfloat16", "tf32"):
            with pytest.raises(InputError, match=f"precision '{precision}' is for GPUs"):
                engine_for(plan, initial_logits(plan), **LEARN, precision=precision)
    with pytest.raises(InputError, match="no precision 'bfloat'; did you mean 'bfloat16'"):
        engine_for(plan, initial_logits(plan), **LEARN, precision="bfloat")
    with pytest.raises(InputError, match=r"no precision torch\.float32; did you mean 'float32'"):
        engine_for(plan, initial_logits(plan), **LEARN, precision=torch.float32)  # pyright: ignore


def test_a_network_whose_rows_cannot_be_told_apart_gets_the_autograd_engine() -> None:
    """Each of its images alone gets the CPU engine, because a single row is always known."""
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    model = Twice().double().eval()
    for count, kind in ((3, AutogradEngine), (1, CpuEngine)):
        plan = plan_for(Linearizer(model).linearize(images[:count], target=0))
        assert isinstance(engine_for(plan, initial_logits(plan), **LEARN), kind)
    explainer = DMBP(model, iterations=6)
    together = explainer.explain(images, target=1)
    alone = explainer.explain(images, target=1, internal_batch_size=1)
    assert together.history.positive.shape == (6, 3)
    assert relative(alone.attribution, together.attribution) <= 1e-8


def test_nothing_is_compiled_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("dmbp.engine.gpu.triton.precompile.compile_ahead", pytest.fail)
    prepare(torch.zeros(1, 3, 8, 8), loss=OBJECTIVES["all"], precision="auto")
