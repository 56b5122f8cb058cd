"""Kernels for many changed images, against PyTorch's operations: equal to the bit."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.engine import select
from dmbp.engine.forward.graph import ForwardGraph
from dmbp.engine.plan.kernels import MAX_POOL
from dmbp.linear import Linearizer
from tests.engine.backends import DEVICE

pytest.importorskip("triton")

from dmbp.engine.gpu.triton.images import can_replace_pixels, max_pool2d, replace_pixels

HALVES = [torch.float16, torch.bfloat16]

Windows = tuple[list[int], list[int], list[int], list[int], bool]
"""Kernel, stride, padding, dilation, and whether the last windows may extend over the border."""

WINDOWS: list[Windows] = [
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([2, 2], [2, 2], [1, 1], [1, 1], True),
    ([2, 2], [3, 3], [0, 0], [1, 1], True),
    ([3, 5], [1, 2], [1, 2], [1, 1], False),
    ([3, 2], [2, 1], [1, 0], [2, 3], True),
    ([1, 1], [2, 2], [0, 0], [1, 1], False),
]


def hard_images(channels: int, dtype: torch.dtype, *size: int) -> Tensor:
    """Few different values, among them both zeros, both infinities and NaN."""
    values = torch.tensor([0.0, -0.0, -1.5, 2.25, torch.inf, -torch.inf, -torch.inf, -torch.inf])
    images = values[torch.randint(len(values), (3, channels, *size))]
    images[torch.rand(images.shape) < 0.02] = torch.nan
    return images.to(DEVICE, dtype)


def bits(images: Tensor) -> Tensor:
    """A tensor's bits, with one pattern for NaN, so that zeros of different signs differ."""
    images = images.contiguous()
    codes = images.view(torch.int16 if images.dtype.itemsize == 2 else torch.int32)
    return torch.where(images.isnan(), -1, codes)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("channels", [1, 3, 70])
@pytest.mark.parametrize("windows", WINDOWS)
def test_max_pooling_is_pytorchs(windows: Windows, channels: int, dtype: torch.dtype) -> None:
    """With odd sides, and of images in any memory order."""
    *settings, ceil_mode = windows
    images = hard_images(channels, dtype, 9, 12)
    expected = torch.max_pool2d(images, *settings, ceil_mode)
    for laid_out in (images, images.contiguous(memory_format=torch.channels_last)):
        found = max_pool2d(laid_out, *settings, ceil_mode=ceil_mode)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(bits(found), bits(expected))
    assert expected.isnan().any()
    wide = hard_images(channels, dtype, 9, 25)[..., ::2]
    found = max_pool2d(wide[..., :12], *settings, ceil_mode=ceil_mode)
    assert torch.equal(bits(found), bits(torch.max_pool2d(wide[..., :12], *settings, ceil_mode)))


def test_max_pooling_refuses_what_pytorch_refuses() -> None:
    images = torch.zeros(2, 3, 4, 4, device=DEVICE, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="pad should be at most half"):
        max_pool2d(images, [2, 2], [2, 2], [2, 2], [1, 1], ceil_mode=False)
    with pytest.raises(RuntimeError, match="too small"):
        max_pool2d(images, [5, 5], [1, 1], [0, 0], [1, 1], ceil_mode=False)
    assert max_pool2d(images[:0], [2, 2], [2, 2], [0, 0], [1, 1], ceil_mode=False).shape[0] == 0


class Poolings(nn.Module):
    """Every way to write the settings of a max-pooling."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(x, 2)
        x = nn.functional.max_pool2d(x, (3, 2), (2, 1), (1, 0), dilation=(1, 2))
        x = nn.functional.max_pool2d(x, 3, padding=1, ceil_mode=True)
        return nn.functional.max_pool2d(x, [2], [1]).flatten(1)


@pytest.mark.parametrize("uses_kernels", [False, True])
def test_poolings_of_a_captured_model_are_replaced(
    uses_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randn(2, 3, 29, 31, device=DEVICE)
    linearizer = Linearizer(Poolings().eval())
    linearizer.linearize(images, target=0)
    captured = linearizer.captured_graph(images)
    assert captured is not None
    graph = ForwardGraph(captured)
    calls: list[Tensor] = []

    def max_pool2d(*arguments: object) -> Tensor:
        calls.append(select.max_pool2d(*arguments))  # pyright: ignore[reportArgumentType]
        return calls[-1]

    graph.replace(MAX_POOL, max_pool2d)
    run = graph.compiled()
    monkeypatch.setattr(select, "has_image_kernels", lambda _: uses_kernels)
    if DEVICE == "cpu":
        monkeypatch.setattr(torch.cuda, "device", lambda _: torch.device("cpu"))
    assert torch.equal(run(images), Poolings()(images))
    assert len(calls) == 4
    channels_last = [call.is_contiguous(memory_format=torch.channels_last) for call in calls]
    assert channels_last == [uses_kernels] * 4


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("channels", "size"), [(3, (37, 25)), (1, (8, 16)), (20, (9, 7))])
def test_replaced_pixels_are_pytorchs(
    channels: int, size: tuple[int, int], dtype: torch.dtype
) -> None:
    """Also images that are there twice, and a mask that is a part of a larger one."""
    images, backgrounds = (
        hard_images(channels, dtype, *size).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    rows = torch.tensor([2, 0, 0, 1, 2], device=DEVICE)
    mask = torch.rand(5, size[0], 2 * size[1], device=DEVICE)[..., ::2] < 0.5
    mask[3], mask[4] = True, False
    assert can_replace_pixels(images, backgrounds)
    expected = select.replace_pixels(images.float(), backgrounds.float(), rows, mask).to(dtype)
    for part in (mask, mask.repeat(1, 1, 2)[..., : size[1]]):
        found = replace_pixels(images, backgrounds, rows, part)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert found.dtype == dtype
        assert torch.equal(bits(found), bits(expected))
    assert torch.equal(bits(found[3]), bits(backgrounds[1]))
    assert torch.equal(bits(found[4]), bits(images[2]))
    assert not torch.equal(bits(images[2]), bits(backgrounds[2]))
    assert replace_pixels(images, backgrounds, rows[:0], mask[:0]).shape[0] == 0


def test_pixels_are_replaced_by_pytorch_unless_images_are_alike_and_channels_last() -> None:
    images = torch.randn(3, 4, 5, 6, device=DEVICE).half()
    last = images.contiguous(memory_format=torch.channels_last)
    assert can_replace_pixels(last, 2 * last)
    for other in (images, last.float(), last.bfloat16(), last[:, :, :, :5], last[:, :, :1]):
        assert not can_replace_pixels(last, other)
        assert not can_replace_pixels(other, last)
    rows = torch.tensor([2, 0], device=DEVICE)
    mask = torch.rand(2, 5, 6, device=DEVICE) < 0.5
    for background in (2 * images, 2 * last):
        for own in (images, last):
            found = select.replace_pixels(own, background, rows, mask)
            assert torch.equal(found, torch.where(mask[:, None], 2, 1) * images[rows])
    vectors = torch.randn(3, 7, device=DEVICE)
    mask = torch.rand(2, 7, device=DEVICE) < 0.5
    found = select.replace_pixels(vectors, -vectors, rows, mask)
    assert torch.equal(found, torch.where(mask, -1, 1) * vectors[rows])


def test_kernels_are_for_images_of_16_bits_on_a_gpu() -> None:
    images = torch.zeros(2, 3, 4, 4, device=DEVICE)
    assert not select.has_image_kernels(images)
    assert not select.has_image_kernels(images.half()[0])
    assert select.has_image_kernels(images.half()) == (DEVICE == "cuda")
