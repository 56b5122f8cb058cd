"""Kernels compiled ahead are those that a network then asks for."""

from collections.abc import Callable
from threading import Thread

import pytest
import torch

from dmbp.decompose.initialisation import initial_logits
from dmbp.decompose.objective import OBJECTIVES
from dmbp.engine import prepare
from dmbp.engine.gpu import GpuEngine
from dmbp.linear import Linearizer
from dmbp.linear.precision import full_precision
from tests.engine.test_splitting import DEVICE, Block

pytest.importorskip("triton")

from dmbp.engine import triton_launch
from dmbp.engine.triton_ahead import ask
from dmbp.engine.triton_launch import FUSED, launch, rehearsing


def asked() -> set[object]:
    """What was launched in a rehearsal: kernels, types of arguments, settings."""
    rehearsal = triton_launch.thread.rehearsal
    assert rehearsal is not None
    is_number = {(True, True), (True, False), (False, True), (False, False)}
    return {
        (name, tuple("int" if kind in is_number else kind for kind in kinds), settings)
        for name, kinds, settings in rehearsal
    }


@pytest.mark.parametrize("objective", ["all", "posneg"])
@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_ahead(objective: str, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    loss = OBJECTIVES[objective]
    inputs = torch.randn(rows, 3, 16, 16).to(DEVICE)
    with full_precision():
        net = Linearizer(Block().to(DEVICE).eval()).linearize(inputs, target=1)
        logits = {name: torch.zeros_like(logits) for name, logits in initial_logits(net).items()}
        engine = GpuEngine(net, logits, loss=loss, learning_rate=0.05, dtype=dtype)
        with rehearsing():
            ask(loss, dtype=dtype, device=inputs.device, rows=rows)
            ahead = asked()
        with rehearsing():
            engine._iterate()  # pyright: ignore[reportPrivateUsage]
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
        assert settings == FUSED
        self.launched += 1


def test_a_rehearsal_is_of_one_thread() -> None:
    rehearsed, launched = Kernel(), Kernel()
    with rehearsing():
        launch(rehearsed, (1,))
        other = Thread(target=launch, args=(launched, (1,)))
        other.start()
        other.join()
    assert (rehearsed.launched, launched.launched) == (0, 1)
    launch(rehearsed, (1,))
    assert rehearsed.launched == 1


def test_nothing_to_prepare_for_a_cpu() -> None:
    prepare(torch.zeros(1, 3, 8, 8), loss=OBJECTIVES["all"], precision="auto")
    assert not triton_launch._behind  # pyright: ignore[reportPrivateUsage]
