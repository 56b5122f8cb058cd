"""Occlusion and tested windows against loops over windows, and against Captum's."""

from collections.abc import Sequence

import pytest
import torch
from captum.attr import Occlusion as CaptumOcclusion
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.attribution.occlusion import Occlusion, WindowWorth
from dmbp.baseline import blur
from dmbp.decompose.details import smooth_edges
from dmbp.decompose.windows import windows_over
from dmbp.errors import InputError
from tests import nets
from tests.attribution.networks import TARGET, images
from tests.tolerance import FLOAT32, FLOAT64, relative


def starts(side: int, stride: int, length: int = 16) -> Sequence[int]:
    return range(0, length - side + 1, stride)


def losses(
    model: nn.Module, image: Tensor, target: int, background: Tensor, side: int, stride: int
) -> tuple[Tensor, Tensor]:
    """What each pixel's windows are worth on average, removed and alone, one at a time."""
    score, empty = (float(model(k[None])[0, target]) for k in (image, background))
    removed, alone, count = torch.zeros(3, 16, 16).double()
    for top in starts(side, stride):
        for left in starts(side, stride):
            window = (slice(top, top + side), slice(left, left + side))
            without, only = image.clone(), background.clone()
            without[:, *window] = background[:, *window]
            only[:, *window] = image[:, *window]
            removed[window] += score - float(model(without[None])[0, target])
            alone[window] += float(model(only[None])[0, target]) - empty
            count[window] += 1
    return removed / count, alone / count


@torch.no_grad()
def test_occlusion_is_a_loop_over_windows() -> None:
    model, inputs = nets.ResidualNet().double().eval(), images()
    for reference, background in (("zero", torch.zeros_like(inputs)), ("blur", blur(inputs))):
        method = Occlusion(model, window=1 / 4, stride=1 / 8, reference=reference)
        found = method.attribute(inputs, target=TARGET)
        for k, target in enumerate(TARGET):
            expected, _ = losses(model, inputs[k], target, background[k], 4, 2)
            assert relative(found[k, 0], expected) <= FLOAT64


def test_occlusion_is_captums() -> None:
    model, inputs = nets.VGGLike().double().eval(), images()
    expected = CaptumOcclusion(model).attribute(
        inputs, (3, 4, 4), strides=(3, 2, 2), target=torch.tensor(TARGET), baselines=0.5
    )
    found = Occlusion(model, window=1 / 4, stride=1 / 8).attribute(inputs, 0.5, TARGET)
    assert relative(found.expand_as(expected), expected) <= FLOAT32  # Captum returns float32


@torch.no_grad()
def test_tested_windows_by_hand() -> None:
    """Red is the mean of three tests above a share of the largest; blue is what all deny."""
    model, inputs = nets.VGGLike().double().eval(), images()
    settings = {"window": 1 / 4, "stride": 1 / 8}
    method = WindowWorth(model, **settings, removal=["blur", "mean"])
    found = method.attribute(inputs, target=TARGET)
    windows = windows_over(inputs[:1], **settings)
    mean = inputs.mean((2, 3), keepdim=True).expand_as(inputs)
    blues = 0
    for k, target in enumerate(TARGET):
        blurred, alone = losses(model, inputs[k], target, blur(inputs)[k], 4, 2)
        averaged, _ = losses(model, inputs[k], target, mean[k], 4, 2)
        tests = torch.stack([blurred, averaged, alone])
        cost = torch.where((tests < 0).all(0), -tests.mean(0), 0.0)
        worth, cost = (smooth_edges(v[None], windows)[0] for v in (tests.mean(0), cost))
        red = worth > 0.15 * worth.max()
        blue = (worth < 0) & (cost > 0)
        assert relative(found[k, 0][red], worth[red]) <= FLOAT64
        blues += int(blue.sum())
        torch.testing.assert_close(found[k, 0][blue], -cost[blue])
        neither = found[k, 0][~red & ~blue]
        assert float(neither.abs().max()) <= 1e-6 * float(worth.max()) * (1 + 1e-9)
    assert blues


@pytest.mark.parametrize("name", ["occlusion", "windows"])
def test_windows_that_cannot_be(name: str) -> None:
    model = nets.VGGLike().eval()
    with pytest.raises(InputError, match="window is a share of the input's side"):
        METHODS[name](model, window=30)
    with pytest.raises(InputError, match="some pixels would be in no window"):
        METHODS[name](model, window=0.1, stride=0.5).attribute(images().float(), target=0)
