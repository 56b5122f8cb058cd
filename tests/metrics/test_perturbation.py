"""MoRF, LeRF and ROAD against loops over pixels, and imputation against a direct solution."""

import numpy
import pytest
import torch
from torch import Tensor, nn

from dmbp.errors import InputError
from dmbp.metrics import (
    insertion,
    linear_imputation,
    perturbation,
    removal,
    remove_pixels,
    road,
)

sparse = pytest.importorskip("scipy.sparse", reason="scipy is the reference of the solver")
linalg = pytest.importorskip("scipy.sparse.linalg")


def small_model(side: int = 12) -> nn.Module:
    torch.manual_seed(0)
    return (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (side - 2) ** 2, 5)
        )
        .double()
        .eval()
        .requires_grad_(False)
    )


def images(count: int = 2, side: int = 12) -> Tensor:
    return torch.randn(
        count, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def direct(image: Tensor, mask: Tensor) -> Tensor:
    """Solve the equations of Rong et al. for one image by SciPy's sparse LU factors."""
    _, height, width = image.shape
    number = {tuple(place): k for k, place in enumerate(mask.nonzero().tolist())}
    matrix = sparse.lil_matrix((len(number), len(number)))
    right = numpy.zeros((len(number), len(image)))
    for (y, x), k in number.items():
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                there = y + dy, x + dx
                if (dy, dx) == (0, 0) or not (0 <= there[0] < height and 0 <= there[1] < width):
                    continue
                weight = 1 / 12 if dy and dx else 1 / 6
                matrix[k, k] += weight
                if there in number:
                    matrix[k, number[there]] -= weight
                else:
                    right[k] += weight * image[:, there[0], there[1]].numpy()
    solved = linalg.spsolve(matrix.tocsc(), right).reshape(len(number), len(image))
    imputed = image.clone()
    for (y, x), k in number.items():
        imputed[:, y, x] = torch.tensor(solved[k])
    return imputed


def blob(side: int) -> Tensor:
    """A disc that reaches over the left edge: most of the image."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return (y - side / 2) ** 2 + (x - side / 3) ** 2 < (0.45 * side) ** 2


@pytest.mark.parametrize("side", [2, 5, 23, 24])
def test_imputation_solves_the_equations(side: int) -> None:
    """Scattered and connected regions, in one batch, on even and odd grids."""
    x = images(3, side)
    random = torch.rand(side, side, generator=torch.Generator().manual_seed(2))
    masks = torch.stack([random < 0.9, blob(side), random < 0.1])[:, None]
    masks[:, :, 0, 0] = False
    found = linear_imputation(x, masks, noise=0.0, tolerance=1e-13)
    for image, mask, imputed in zip(x, masks, found, strict=True):
        torch.testing.assert_close(imputed, direct(image, mask[0]), rtol=0, atol=1e-9)
    alone = linear_imputation(x[1:2], masks[1:2], noise=0.0, tolerance=1e-13)
    torch.testing.assert_close(alone[0], found[1], rtol=0, atol=1e-9)


def test_the_default_tolerance_is_far_below_the_noise() -> None:
    x, mask = images(1, 40).float(), blob(40)[None, None]
    found = linear_imputation(x, mask, noise=0.0)[0]
    assert (found - direct(x[0].double(), mask[0, 0])).abs().max() < 1e-4


def test_noise_is_added_to_removed_pixels_only() -> None:
    x, mask = images(2), blob(12).expand(2, 1, 12, 12)
    noisy, smooth = (linear_imputation(x, mask, noise=noise) for noise in (0.5, 0.0))
    changed = (noisy - smooth)[mask.expand_as(x)]
    assert 0.4 < changed.std() < 0.6
    assert torch.equal(noisy[~mask.expand_as(x)], x[~mask.expand_as(x)])
    torch.testing.assert_close((noisy - smooth)[0], (noisy - smooth)[1])


def test_an_image_without_any_pixel_left() -> None:
    x = images(1)
    found = linear_imputation(x, torch.ones(1, 1, 12, 12, dtype=torch.bool), noise=0.0)
    torch.testing.assert_close(found, x.mean((2, 3), keepdim=True).expand_as(x))


def by_hand(model: nn.Module, x: Tensor, target: int, order: list[int], fill: Tensor) -> float:
    """Return the area under the curve of removing pixels one by one in an order."""
    image, curve = x.clone(), []
    for k in [None, *order]:
        if k is not None:
            row, column = divmod(k, x.shape[-1])
            image[:, :, row, column] = fill[:, :, row, column]
        curve.append(float(model(image).softmax(1)[0, target]))
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)


def test_both_orders_pixel_by_pixel() -> None:
    model, x = small_model(6), images(2, 6)
    maps = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    found = perturbation(model, x, [1, 4], maps, steps=36, substrate="zero")
    for k, target in enumerate((1, 4)):
        order = maps[k].flatten().argsort(descending=True).tolist()
        zeros = torch.zeros_like(x[:1])
        morf = by_hand(model, x[k : k + 1], target, order, zeros)
        lerf = by_hand(model, x[k : k + 1], target, order[::-1], zeros)
        assert float(found.morf[k]) == pytest.approx(morf, abs=1e-12)
        assert float(found.lerf[k]) == pytest.approx(lerf, abs=1e-12)
        assert float(found.gap[k]) == pytest.approx(lerf - morf, abs=1e-12)
    whole = model(x).softmax(1)[[0, 1], [1, 4]]
    for curve in (found.morf_curve, found.lerf_curve):
        torch.testing.assert_close(curve[:, 0], whole)  # before anything is removed
    assert torch.equal(found.lerf, insertion(model, x, [1, 4], maps, steps=36, substrate="zero"))


def test_road_by_hand() -> None:
    """Remove, impute, ask, at each percentage, in both orders."""
    model, x = small_model(), images(2)
    maps = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(4))
    found = road(model, x, [0, 3], maps, percentages=(25, 50))
    for sign, scores in ((1, found.morf), (-1, found.lerf)):
        for k, target in enumerate((0, 3)):
            likely = []
            for share in (0.25, 0.5):
                cut = (
                    (sign * maps[k].flatten()).sort(descending=True).values[round(share * 144) - 1]
                )
                mask = (sign * maps[k] >= cut)[None]
                image = linear_imputation(x[k : k + 1], mask)
                likely.append(float(model(image).softmax(1)[0, target]))
            assert float(scores[k]) == pytest.approx(sum(likely) / 2, abs=1e-6)
    assert found.morf_curve.shape == (2, 2)
    with pytest.raises(InputError, match="percentages must be numbers from 0 to 100"):
        road(model, x, 0, maps, percentages=(50, 101))
    with pytest.raises(InputError, match="linear imputation needs images"):
        insertion(
            nn.Flatten().eval(), torch.ones(1, 2, 4), 0, torch.ones(1, 2, 4), substrate="linear"
        )


@pytest.mark.parametrize("name", ["blur", "zero", "mean", "noise"])
def test_a_substrate_by_name_tensor_or_function_is_the_same(name: str) -> None:
    model, x = small_model(), images(2)
    maps = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(5))
    everything = torch.ones(2, 1, 12, 12, dtype=torch.bool)
    tensor = remove_pixels(x, everything, name)

    def function(inputs: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, remove_pixels(inputs, torch.ones_like(mask), name), inputs)

    for score in (
        lambda s: insertion(model, x, 1, maps, substrate=s, steps=5),
        lambda s: removal(model, x, 1, maps, substrate=s).score_without_positive,
    ):
        expected = score(name)
        assert torch.equal(score(tensor), expected)
        torch.testing.assert_close(score(function), expected)


def test_an_unknown_substrate() -> None:
    with pytest.raises(InputError, match="'noise', 'linear', a tensor or a function, not 'grey'"):
        insertion(small_model(), images(), 0, images(), substrate="grey")  # type: ignore[arg-type]
