"""Max-pooling by itself in Triton, against scattering what each window's winner gets."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import plan_for
from dmbp.engine.gpu.fusion import plan_fusion
from dmbp.engine.plan.kernels import Kernels, Pooling, square_windows
from dmbp.engine.plan.operations import GatherOperation
from dmbp.engine.plan.streams import channels_last
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather

pytest.importorskip("triton")

from dmbp.engine.gpu.learning_state import initial_state
from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
from dmbp.engine.gpu.triton.transposes import unpool, window_winners

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

WINDOWS = [(2, 2, 0, False), (2, 2, 1, True), (3, 2, 1, False), (3, 1, 1, False), (2, 3, 0, True)]
"""Kernel, stride, padding and whether the last windows may hang over."""


def pooled(windows: tuple[int, int, int, bool]) -> LinearNetwork:
    kernel, stride, padding, hangs_over = windows
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=hangs_over)
    model = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.ReLU(), pool, nn.Flatten())
    model.append(nn.LazyLinear(4))
    inputs = torch.randn(2, 3, 13, 12)
    model(inputs)
    return Linearizer(model.eval().to(DEVICE)).linearize(inputs.to(DEVICE), target=1)


def pooling_of(net: LinearNetwork) -> tuple[Pooling, GatherOperation]:
    planned = next(p for p in plan_for(net).steps if isinstance(p.operation, GatherOperation))
    pooling = square_windows(planned.step)
    assert pooling is not None
    assert isinstance(planned.operation, GatherOperation)
    return pooling, planned.operation


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("windows", WINDOWS)
def test_every_pixel_gets_of_the_windows_it_won(
    windows: tuple[int, int, int, bool], streams: int
) -> None:
    pooling, _ = pooling_of(pooled(windows))
    images = torch.zeros(2, 5, 11, 10, device=DEVICE, requires_grad=True)
    gradient = torch.randn(2 * streams, *pooling.index.shape[1:], device=DEVICE)
    expected = [_scattered(images, pooling.index, part) for part in gradient.chunk(streams)]
    for index in (pooling.index, channels_last(pooling.index)):
        laid = replace(pooling, step=replace(pooling.step, function=Gather(index, 2)))
        found = unpool(channels_last(gradient), window_winners(laid, 10), laid, (11, 10))
        assert torch.allclose(found, torch.cat(expected), atol=1e-6)


def _scattered(images: Tensor, index: Tensor, gradient: Tensor) -> Tensor:
    picked = images.flatten(2).gather(2, index.flatten(2)).view(index.shape)
    return torch.autograd.grad(picked, images, gradient)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("windows", WINDOWS)
def test_past_the_masks_of_winners(windows: tuple[int, int, int, bool], dtype: torch.dtype) -> None:
    """What winners get passes their masks; nobody else gets anything."""
    net = pooled(windows)
    plan = plan_for(net)
    merging = plan_fusion([p.step for p in plan.steps], {0}, pooling=True)
    (merged,) = merging.gates.values()
    assert merged.gate.site is not None
    logits = torch.randn(merged.gate.site.shape, device=DEVICE)
    learning = initial_state(OBJECTIVES["all"], 0.1, dtype=dtype, unit=1.0, tail=plan.tail)
    site = PooledTritonSite(merged, logits, learning)
    pooling, operation = pooling_of(net)
    gradient = torch.randn(4, *pooling.index.shape[1:], device=DEVICE)
    (at_pixels,) = operation.transpose(gradient)
    assert isinstance(merged.gate.function, ElementwiseLine)
    slope = merged.gate.function.slope
    expected = Kernels().pass_gate(at_pixels, slope, site.logits)
    assert torch.allclose(site.pass_gradient(at_pixels, slope, None), expected, atol=1e-6)
