"""Transposes of convolutions and max-poolings as Triton kernels, against autograd's."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import plan_for
from dmbp.engine.gpu.fusion import plan_fusion
from dmbp.engine.gpu.learning_state import initial_state
from dmbp.engine.plan.convolution import ConvolutionSettings
from dmbp.engine.plan.kernels import Kernels, Pooling, square_windows
from dmbp.engine.plan.operations import GatherOperation
from dmbp.engine.plan.streams import channels_last
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather
from dmbp.precision import full_precision
from tests.engine.backends import DEVICE

pytest.importorskip("triton")

from dmbp.engine.gpu.triton import transposes
from dmbp.engine.gpu.triton.pooled_site import PooledTritonSite
from dmbp.engine.gpu.triton.transposes import (
    GatheredTranspose,
    can_gather_transpose,
    unpool,
    window_winners,
)

Windows = tuple[int, int, int, bool]
"""Kernel, stride, padding, and whether the last windows may extend beyond the border."""

WINDOWS = [(2, 2, 0, False), (2, 2, 1, True), (3, 2, 1, False), (3, 1, 1, False), (2, 3, 0, True)]


@pytest.mark.parametrize("most_elements", [transposes.MAX_COLUMN_ELEMENTS, 1])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding"),
    [
        (70, (3, 3), [2, 2], [1, 1]),
        (3, (3, 3), [2, 2], [1, 1]),
        (3, (1, 1), [2, 2], [0, 0]),
        (1, (7, 5), [2, 1], [3, 0]),
        (3, (7, 5), [2, 1], [3, 0]),
        (3, (2, 3), [3, 2], [1, 2]),
    ],
)
def test_gathered_transpose_matches_autograd(
    channels: int,
    kernel: tuple[int, int],
    stride: list[int],
    padding: list[int],
    most_elements: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in parts, if memory for all columns at once would be too much."""
    monkeypatch.setattr(transposes, "MAX_COLUMN_ELEMENTS", most_elements)
    settings: ConvolutionSettings = (stride, padding, [1, 1], 1)
    weight = torch.randn(6, channels, *kernel, device=DEVICE)
    images = torch.randn(3, channels, 13, 12, device=DEVICE, requires_grad=True)
    with full_precision():
        outputs = torch.conv2d(images, weight, None, stride, padding)
        gradient = torch.randn_like(outputs)
        (expected,) = torch.autograd.grad(outputs, images, gradient)
        found = GatheredTranspose(weight, settings, (13, 12))(channels_last(gradient))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_dilated_and_grouped_convolutions_are_not_gathered() -> None:
    weight = torch.zeros(8, 8, 3, 3)
    assert can_gather_transpose(weight, ([2, 2], [1, 1], [1, 1], 1))
    assert not can_gather_transpose(weight, ([2, 2], [1, 1], [2, 2], 1))
    assert not can_gather_transpose(weight, ([2, 2], [1, 1], [1, 1], 2))


def pooled(windows: Windows) -> LinearNetwork:
    kernel, stride, padding, ceil_mode = windows
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil_mode)
    model = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.ReLU(), pool, nn.Flatten())
    model.append(nn.LazyLinear(4))
    inputs = torch.randn(2, 3, 13, 12)
    model(inputs)
    return Linearizer(model.eval().to(DEVICE)).linearize(inputs.to(DEVICE), target=1)


def pooling_in(net: LinearNetwork) -> tuple[Pooling, GatherOperation]:
    planned = next(p for p in plan_for(net).steps if isinstance(p.operation, GatherOperation))
    pooling = square_windows(planned.step)
    assert pooling is not None
    assert isinstance(planned.operation, GatherOperation)
    return pooling, planned.operation


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("windows", WINDOWS)
def test_unpooling_matches_autograd(windows: Windows, streams: int) -> None:
    """Every pixel receives the sum of the gradients of the windows it won."""
    pooling, _ = pooling_in(pooled(windows))
    images = torch.zeros(2, 5, 11, 10, device=DEVICE, requires_grad=True)
    gradient = torch.randn(2 * streams, *pooling.index.shape[1:], device=DEVICE)
    expected = [_scattered(images, pooling.index, part) for part in gradient.chunk(streams)]
    for index in (pooling.index, channels_last(pooling.index)):
        laid_out = replace(pooling, step=replace(pooling.step, function=Gather(index, 2)))
        found = unpool(channels_last(gradient), window_winners(laid_out, 10), laid_out, (11, 10))
        assert torch.allclose(found, torch.cat(expected), atol=1e-6)


def _scattered(images: Tensor, index: Tensor, gradient: Tensor) -> Tensor:
    winners = images.flatten(2).gather(2, index.flatten(2)).view(index.shape)
    return torch.autograd.grad(winners, images, gradient)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("windows", WINDOWS)
def test_a_pooled_site_passes_gradients_through_the_masks_of_winners(
    windows: Windows, dtype: torch.dtype
) -> None:
    net = pooled(windows)
    plan = plan_for(net)
    fusion = plan_fusion([p.step for p in plan.steps], {0}, pooling=True)
    (fused,) = fusion.gates.values()
    assert fused.gate.site is not None
    logits = torch.randn(fused.gate.site.shape, device=DEVICE)
    learning = initial_state(OBJECTIVES["all"], 0.1, dtype=dtype, unit=1.0, tail=plan.tail)
    site = PooledTritonSite(fused, logits, learning)
    pooling, operation = pooling_in(net)
    gradient = torch.randn(4, *pooling.index.shape[1:], device=DEVICE)
    (at_pixels,) = operation.transpose(gradient)
    assert isinstance(fused.gate.function, ElementwiseLine)
    slope = fused.gate.function.slope
    expected = Kernels().pass_gate(at_pixels, slope, site.logits)
    assert torch.allclose(site.pass_gradient(at_pixels, slope, None), expected, atol=1e-6)
