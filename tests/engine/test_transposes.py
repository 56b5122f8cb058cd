"""Transposes of convolutions whose columns are gathered, against autograd's."""

import pytest
import torch

from dmbp.precision import full_precision

pytest.importorskip("triton")

from dmbp.engine.gpu.triton import transposes as triton_columns
from dmbp.engine.gpu.triton.transposes import GatheredTranspose, can_gather_transpose
from dmbp.engine.plan.convolution import ConvolutionSettings
from dmbp.engine.plan.streams import channels_last

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("at_once", [triton_columns.MAX_COLUMN_ELEMENTS, 1])
@pytest.mark.parametrize("channels", [1, 3, 70])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((3, 3), [2, 2], [1, 1]),
        ((1, 1), [2, 2], [0, 0]),
        ((7, 5), [2, 1], [3, 0]),
        ((2, 3), [3, 2], [1, 2]),
    ],
)
def test_as_autograd_does(
    kernel: tuple[int, int],
    stride: list[int],
    padding: list[int],
    channels: int,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_columns, "MAX_COLUMN_ELEMENTS", at_once)
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


def test_what_it_is_for() -> None:
    weight = torch.zeros(8, 8, 3, 3)
    assert can_gather_transpose(weight, ([2, 2], [1, 1], [1, 1], 1))
    assert not can_gather_transpose(weight, ([2, 2], [1, 1], [2, 2], 1))
    assert not can_gather_transpose(weight, ([2, 2], [1, 1], [1, 1], 2))
