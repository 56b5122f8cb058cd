"""KernelSHAP against Shapley values by their definition."""

import math
import sys
from itertools import permutations

import pytest
import torch
from torch import Tensor

from dmbp.attribution.kernel_shap import KernelSHAP, coalitions, grid, segments
from dmbp.errors import InputError
from tests import nets
from tests.attribution.networks import images
from tests.tolerance import FLOAT64, relative

quarters = grid((16, 16), 4)


@torch.no_grad()
def shapley_by_definition(model: torch.nn.Module, image: Tensor, baseline: Tensor) -> Tensor:
    """The mean gain of each region over all orders in which regions can be added."""
    count = int(quarters.max()) + 1
    values = torch.zeros(count, 5).double()
    for order in permutations(range(count)):
        shown, before = baseline.clone(), model(baseline[None])[0]
        for region in order:
            shown = torch.where(quarters == region, image, shown)
            after = model(shown[None])[0]
            values[region] += (after - before) / math.factorial(count)
            before = after
    return values


def test_it_is_the_definition() -> None:
    model, inputs = nets.ResidualNet().double().eval(), images()[:1]
    method = KernelSHAP(model, count=4, samples=14)  # all coalitions of four regions
    for baseline in (0.0, 0.7):
        expected = shapley_by_definition(model, inputs[0], torch.full_like(inputs[0], baseline))
        found = method.attribute(inputs, baseline, [[0, 3]])
        for row, target in enumerate((0, 3)):
            by_region = torch.stack([found[row, 0][quarters == k].sum() for k in range(4)])
            assert relative(by_region, expected[:, target]) <= FLOAT64
            pixels = found[row, 0] * 64
            assert relative(pixels, expected[:, target][quarters]) <= FLOAT64


def test_a_sum_over_regions_is_found_from_few_coalitions() -> None:
    """An additive model's Shapley values are its terms, whatever is drawn."""

    class Additive(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            cells = torch.nn.functional.avg_pool2d(x.mean(1, keepdim=True), 4)
            return torch.cat(
                [cells.exp().sum((1, 2, 3), keepdim=False)[:, None], cells[:, 0, 0]], 1
            )

    inputs = images()
    found = KernelSHAP(Additive().eval(), count=16, samples=100).attribute(inputs, target=0)
    cells = torch.nn.functional.avg_pool2d(inputs.mean(1, keepdim=True), 4)
    expected = (cells.exp() - 1).repeat_interleave(4, 2).repeat_interleave(4, 3) / 16
    assert relative(found, expected) <= 1e-8  # a system of 16 unknowns has been solved


def test_coalitions_follow_the_kernel() -> None:
    """All of the outer sizes are there, each once; the others are drawn in pairs."""
    kept, weights = coalitions(20, 4000, seed=0)
    sizes = kept.sum(1)
    found = torch.zeros(21).double().index_add(0, sizes, weights)[1:20]
    kernel = 19 / (torch.arange(1, 20) * (20 - torch.arange(1, 20))).double()  # C(M, s) · k(s)
    counts = sizes.bincount(minlength=21)
    outer = [s for s in range(1, 20) if counts[s] == math.comb(20, s)]
    assert outer == [1, 2, 18, 19]
    for size in outer:
        assert len(kept[sizes == size].unique(dim=0)) == counts[size]
        assert float(found[size - 1]) == pytest.approx(float(kernel[size - 1]))
    assert float((found - kernel).abs().max()) < 0.02 * float(kernel.sum())
    assert float(found.sum()) == pytest.approx(float(kernel.sum()))
    drawn = kept[(sizes > 2) & (sizes < 18)]
    assert torch.equal(drawn[0::2], ~drawn[1::2])
    every, kernel_weights = coalitions(4, 14, seed=0)
    assert len(every.unique(dim=0)) == len(every) == 14
    assert kernel_weights[every.sum(1) == 2].tolist() == [0.125] * 6  # 3 / (6 · 2 · 2)
    assert len(coalitions(1, 14, seed=0)[0]) == 0


def test_segments_follow_the_image() -> None:
    """Every segment of an image of four flat colours has one colour."""
    colours = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]]).double()
    image = colours[quarters].movedim(-1, 0)
    labels = segments(image, 8)
    assert len(labels.unique()) >= 4
    for label in labels.unique():
        assert len(image[:, labels == label].unique(dim=1)[0]) == 1
    model = nets.VGGLike().double().eval()
    method = KernelSHAP(model, regions="segments", count=8, samples=64)
    maps = method.attribute(image[None], target=2)
    own = KernelSHAP(model, regions=labels, samples=64).attribute(image[None], target=2)
    assert torch.equal(maps, own)


def test_regions_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = nets.VGGLike().eval(), images().float()
    with pytest.raises(InputError, match="'grids'; did you mean 'grid'"):
        KernelSHAP(model, regions="grids")
    with pytest.raises(InputError, match="samples must be from 2"):
        KernelSHAP(model, samples=1)
    with pytest.raises(InputError, match=r"regions must be whole numbers of shape \(16, 16\)"):
        KernelSHAP(model, regions=torch.zeros(8, 8).long()).attribute(inputs, target=0)
    with pytest.raises(InputError, match="needs images or volumes"):
        segments(torch.randn(2, 20), 4)
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(InputError, match="needs scikit-image: pip install"):
        KernelSHAP(model, regions="segments").attribute(inputs, target=0)
