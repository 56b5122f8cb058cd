"""Kernels compiled ahead are those that a network then asks for."""

from collections.abc import Callable
from threading import Event, Thread, Timer

import pytest
import torch
from torch import nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import plan_for, prepare
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.linear import Linearizer
from dmbp.precision import full_precision
from tests.engine.networks import Block

pytest.importorskip("triton")

from dmbp.engine.gpu.triton import launch as triton_launch
from dmbp.engine.gpu.triton.backend import TritonBackend
from dmbp.engine.gpu.triton.launch import FP_FUSION, compile_only, launch
from dmbp.engine.gpu.triton.precompile import launch_common_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def pooled() -> nn.Module:
    """Both kinds of pooling, ResNets' and VGGs'."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 5),
    )


def asked() -> set[object]:
    """What was launched in a rehearsal: kernels, types of arguments, settings."""
    rehearsal = triton_launch.thread_state.compilations
    assert rehearsal is not None
    is_number = {(True, True), (True, False), (False, True), (False, False)}
    return {
        (name, tuple("int" if kind in is_number else kind for kind in kinds), settings)
        for name, kinds, settings in rehearsal
    }


@pytest.mark.parametrize("model", [Block, pooled])
@pytest.mark.parametrize("objective", ["all", "posneg"])
@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_ahead(
    model: Callable[[], nn.Module], objective: str, rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    loss = OBJECTIVES[objective]
    inputs = torch.randn(rows, 3, 16, 16).to(DEVICE)
    with full_precision():
        net = Linearizer(model().to(DEVICE).eval()).linearize(inputs, target=1)
        plan = plan_for(net)
        logits = {name: torch.zeros_like(logits) for name, logits in initial_logits(plan).items()}
        engine = GpuEngine(
            plan, logits, loss=loss, learning_rate=0.05, dtype=dtype, backend=TritonBackend()
        )
        with compile_only():
            launch_common_kernels(loss, dtype=dtype, device=inputs.device, rows=rows)
            ahead = asked()
        with compile_only():
            engine._iteration.run()  # pyright: ignore[reportPrivateUsage]
            engine.readout()
            needed = asked()
    assert needed
    assert needed <= ahead


class Kernel:
    """Counts what is launched."""

    __name__ = "kernel"
    launched = 0

    def __getitem__(self, _: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, **settings: object) -> None:
        assert settings == FP_FUSION
        self.launched += 1


class Slow(Kernel):
    """Takes as long to compile as it is told to."""

    run = None

    def __init__(self) -> None:
        self.may_end = Event()
        self.is_compiled = False

    def warmup(self, *, grid: tuple[int, ...], **_: object) -> "Slow":
        assert grid == (1,)
        self.is_compiled = self.may_end.wait(timeout=60)
        return self

    def _launch(self, **settings: object) -> None:
        assert self.is_compiled
        super()._launch(**settings)


def test_a_launch_waits_for_its_own_kernel_alone() -> None:
    slow, other = Slow(), Kernel()
    other.__name__ = "other"
    with compile_only(background=True):
        launch(slow, (1,))
    launch(other, (1,))
    assert (other.launched, slow.is_compiled) == (1, False)
    with compile_only(background=True):
        launch(slow, (1,))  # is on its way
    Timer(0.2, slow.may_end.set).start()
    launch(slow, (1,))
    assert slow.launched == 1
    assert not triton_launch._pending  # pyright: ignore[reportPrivateUsage]


def test_a_rehearsal_waits_for_what_is_on_its_way() -> None:
    slow = Slow()
    with compile_only(background=True):
        launch(slow, (1,))
    Timer(0.2, slow.may_end.set).start()
    with compile_only():
        launch(slow, (1,))
    assert slow.is_compiled


def test_a_rehearsal_is_of_one_thread() -> None:
    rehearsed, launched = Kernel(), Kernel()
    with compile_only():
        launch(rehearsed, (1,))
        other = Thread(target=launch, args=(launched, (1,)))
        other.start()
        other.join()
    assert (rehearsed.launched, launched.launched) == (0, 1)
    launch(rehearsed, (1,))
    assert rehearsed.launched == 1


def test_nothing_to_prepare_for_a_cpu() -> None:
    prepare(torch.zeros(1, 3, 8, 8), loss=OBJECTIVES["all"], precision="auto")
    assert not triton_launch._pending  # pyright: ignore[reportPrivateUsage]
