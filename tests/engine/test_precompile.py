"""The kernels compiled in advance include those that a typical network then launches."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import plan_for
from dmbp.engine.gpu.engine import GpuEngine
from dmbp.linear import Linearizer
from dmbp.precision import full_precision
from tests.engine.backends import DEVICE
from tests.engine.networks import Block

pytest.importorskip("triton")

from dmbp.engine.gpu.triton.backend import TritonBackend
from dmbp.engine.gpu.triton.images import max_pool2d, replace_pixels
from dmbp.engine.gpu.triton.launch import compile_only, thread_state
from dmbp.engine.gpu.triton.precompile import launch_common_kernels

HALF, SINGLE = torch.float16, torch.float32


def pooled() -> nn.Module:
    """The max-poolings of ResNets and of VGGs."""
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


def compilations() -> set[object]:
    """Return what `compile_only` compiles: kernels, argument types and settings."""
    assert thread_state.compilations is not None
    is_number = {(True, True), (True, False), (False, True), (False, False)}
    return {
        (name, tuple("int" if kind in is_number else kind for kind in kinds), settings)
        for name, kinds, settings in thread_state.compilations
    }


@pytest.mark.parametrize(
    ("model", "objective", "rows", "dtype"),
    [
        (Block, "all", 1, HALF),
        (Block, "posneg", 1, HALF),
        (Block, "all", 30, HALF),
        (Block, "posneg", 30, SINGLE),
        (pooled, "posneg", 1, HALF),
        (pooled, "all", 30, HALF),
        (pooled, "all", 1, SINGLE),
    ],
)
def test_common_kernels_include_those_of_a_network(
    model: Callable[[], nn.Module], objective: str, rows: int, dtype: torch.dtype
) -> None:
    """Convolutions are split for one row, and not for thirty."""
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
            common = compilations()
        with compile_only():
            engine._iteration.run()  # pyright: ignore[reportPrivateUsage]
            engine.readout()
            needed = compilations()
    assert needed
    assert needed <= common


def test_common_kernels_include_those_for_changed_images() -> None:
    images = torch.zeros(2, 3, 32, 32, device=DEVICE, dtype=HALF)
    images = images.contiguous(memory_format=torch.channels_last)
    activations = torch.zeros(2, 128, 9, 7, device=DEVICE, dtype=HALF)
    rows, mask = torch.tensor([1], device=DEVICE), images[:1, 0] > 0
    with compile_only():
        launch_common_kernels(OBJECTIVES["all"], dtype=HALF, device=images.device, rows=1)
        common = compilations()
    with compile_only():
        max_pool2d(activations, [3, 3], [2, 2], [1, 1], [1, 1], ceil_mode=False)
        replace_pixels(images, images, rows, mask)
        needed = compilations()
    assert len(needed) == 2
    assert needed <= common
