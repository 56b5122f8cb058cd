"""Convolutions by Winograd's method, against PyTorch's in double precision."""

import pytest
import torch

from dmbp.precision import full_precision
from tests.engine.backends import DEVICE

pytest.importorskip("triton")

from dmbp.engine.gpu.triton import winograd as triton_winograd
from dmbp.engine.gpu.triton.winograd import WinogradConvolution, should_use_winograd
from dmbp.engine.plan.streams import channels_last


@pytest.mark.parametrize("most_elements", [triton_winograd.MAX_WORKSPACE_ELEMENTS, 1, 40_000])
@pytest.mark.parametrize(
    ("rows", "in_channels", "channels", "size", "padding"),
    [(1, 3, 5, (4, 4), 1), (3, 33, 70, (7, 10), 1), (2, 64, 32, (9, 5), 0), (2, 5, 4, (3, 1), 2)],
)
@pytest.mark.parametrize("biased", [False, True])
def test_winograd_matches_a_direct_convolution(
    rows: int,
    in_channels: int,
    channels: int,
    size: tuple[int, int],
    padding: int,
    biased: bool,
    most_elements: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With odd sides, channels that do not fill a tile, and tiles in several parts."""
    monkeypatch.setattr(triton_winograd, "MAX_WORKSPACE_ELEMENTS", most_elements)
    images = torch.randn(rows, in_channels, *size, device=DEVICE)
    weight = torch.randn(channels, in_channels, 3, 3, device=DEVICE)
    bias = torch.randn(channels, device=DEVICE) if biased else None
    exact = [None if part is None else part.double() for part in (images, weight, bias)]
    expected = torch.conv2d(*exact, padding=padding)  # pyright: ignore[reportArgumentType]
    with full_precision():
        found = WinogradConvolution(weight, bias, padding)(channels_last(images))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_winograd_is_for_square_dense_3_by_3_kernels() -> None:
    weight = torch.zeros(64, 64, 3, 3)
    plain = ([1, 1], [1, 1], [1, 1], 1)
    assert should_use_winograd(weight, plain)
    assert not should_use_winograd(weight[:, :, :, :2], plain)
    assert not should_use_winograd(weight[:8], plain)
    for other in (([2, 2], [1, 1], [1, 1], 1), ([1, 1], [1, 1], [2, 2], 1)):
        assert not should_use_winograd(weight, other)
    assert not should_use_winograd(weight, ([1, 1], [1, 0], [1, 1], 1))
    assert not should_use_winograd(weight, ([1, 1], [1, 1], [1, 1], 2))
