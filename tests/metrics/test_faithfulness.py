"""Infidelity, confidence, sensitivity, localisation and sparseness against loops over pixels."""

import pytest
import torch
from captum.metrics import infidelity as captums_infidelity
from captum.metrics import sensitivity_max
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.errors import InputError
from dmbp.metrics import (
    confidence,
    energy_pointing_game,
    infidelity,
    mass_accuracy,
    max_sensitivity,
    rank_accuracy,
    sparseness,
)
from dmbp.metrics.faithfulness import random_boxes

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(3, 3, 10, 10, dtype=torch.float64, generator=GENERATOR)
MAPS = torch.randn(3, 3, 10, 10, dtype=torch.float64, generator=GENERATOR)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5)
    return nn.Sequential(*layers).double().eval()


TARGETS = [0, 3, 4]


@pytest.mark.parametrize("scale", [False, True])
def test_infidelity_by_hand(model: nn.Module, scale: bool) -> None:
    boxes = random_boxes((1, 10, 10), 7)[:, 0]
    options = {"samples": 7, "scale": scale, "substrate": "zero"}
    found = infidelity(model, IMAGES, TARGETS, MAPS, **options)
    relative = infidelity(model, IMAGES, TARGETS, MAPS, **options, relative=True)
    for k, target in enumerate(TARGETS):
        predicted, falls = [], []
        for box in boxes:
            without = IMAGES[k : k + 1].clone()
            without[:, :, box] = 0
            predicted.append(float(MAPS[k].sum(0)[box].sum()))
            with torch.no_grad():
                falls.append(float((model(IMAGES[k : k + 1]) - model(without))[0, target]))
        pairs = list(zip(predicted, falls, strict=True))
        factor = sum(p * f for p, f in pairs) / sum(p * p for p in predicted) if scale else 1.0
        error = sum((factor * p - f) ** 2 for p, f in pairs) / 7
        assert float(found[k]) == pytest.approx(error, rel=1e-9)
        assert float(relative[k]) == pytest.approx(error * 7 / sum(f * f for f in falls), rel=1e-9)


@pytest.mark.parametrize("scale", [False, True])
def test_infidelity_is_captums(model: nn.Module, scale: bool) -> None:
    """With boxes as the perturbation; Captum's map has one channel for each of the image's."""
    boxes = random_boxes((1, 10, 10), 6)
    drawn = iter(boxes.repeat(2, 1, 1, 1))

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        mask = next(drawn).expand_as(inputs)
        return mask.to(inputs), torch.where(mask, 0.0, inputs)

    found = infidelity(model, IMAGES, TARGETS, MAPS, samples=6, scale=scale, substrate="zero")
    expected = captums_infidelity(
        model,
        perturb,
        IMAGES,
        MAPS,
        target=TARGETS,
        n_perturb_samples=6,
        max_examples_per_batch=3,
        normalize=scale,
    )
    torch.testing.assert_close(found, expected)


def test_a_linear_model_is_predicted_by_its_gradient() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(300, 2)).double().eval()
    maps = linear[1].weight[1].view(1, 3, 10, 10).detach() * IMAGES
    options = {"substrate": "zero", "samples": 9}
    assert float(infidelity(linear, IMAGES, 1, maps, scale=False, **options).max()) < 1e-20
    assert float(infidelity(linear, IMAGES, 1, -5 * maps, **options).max()) < 1e-20
    blank = infidelity(linear, IMAGES, 1, 0 * maps, relative=True, **options)
    assert blank.tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_boxes_have_the_sides_that_they_say() -> None:
    for size, dims in (((1, 40, 24), (1, 2)), ((50,), (0,)), ((1, 30), (1,))):
        boxes = random_boxes(size, 100)
        assert boxes.shape == (100, *size)
        for dim in dims:
            others = tuple(k for k in range(1, len(size) + 1) if k != dim + 1)
            side = boxes.any(others).sum(1) if others else boxes.sum(1)
            assert side.min() >= round(size[dim] / 8)
            assert side.max() <= round(size[dim] / 2)
            assert len(side.unique()) > 5


def test_confidence_by_hand(model: nn.Module) -> None:
    found = confidence(model, IMAGES, TARGETS, MAPS)
    for k, target in enumerate(TARGETS):
        weights = MAPS[k].sum(0).clamp(min=0)
        shown = IMAGES[k] * (weights / weights.max())
        with torch.no_grad():
            y, o = (float(model(x[None]).softmax(1)[0, target]) for x in (IMAGES[k], shown))
        assert float(found.drop[k]) == pytest.approx(max(0, y - o) / y)
        assert float(found.gain[k]) == pytest.approx(max(0, o - y) / (1 - y))
        assert float(found.increase[k]) == float(o > y)
    whole = confidence(model, IMAGES, TARGETS, torch.ones(3, 1, 10, 10))
    assert whole.drop.tolist() == [0, 0, 0]
    none = confidence(model, IMAGES, 0, -MAPS.abs(), substrate="mean")
    mean = IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES)
    torch.testing.assert_close(none.probability_of_shown, model(mean).softmax(1)[:, 0])


def test_sensitivity_by_hand_and_by_captum(model: nn.Module) -> None:
    explainer = METHODS["gradient"](model)
    found = max_sensitivity(explainer.attribute, IMAGES, TARGETS, samples=4, radius=0.1)
    drawn = torch.Generator().manual_seed(0)
    before = explainer.attribute(IMAGES, target=TARGETS)
    largest = torch.zeros(3, dtype=torch.float64)
    noises = [2 * torch.rand(3, 10, 10, generator=drawn) - 1 for _ in range(4)]
    for noise in noises:
        changed = explainer.attribute(IMAGES + 0.1 * noise, target=TARGETS) - before
        share = changed.flatten(1).norm(dim=1) / before.flatten(1).norm(dim=1)
        largest = torch.maximum(largest, share)
    torch.testing.assert_close(found, largest)
    repeated = iter(noises)
    expected = sensitivity_max(
        explainer.attribute,
        IMAGES,
        perturb_func=lambda x, _: x + 0.1 * next(repeated),
        n_perturb_samples=4,
        max_examples_per_batch=3,
        target=TARGETS,
    )
    torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match="samples must be a whole number"):
        max_sensitivity(explainer.attribute, IMAGES, TARGETS, samples=0)


def test_localisation_by_hand() -> None:
    boxes = [[(1, 2, 4, 6)], [(0, 0, 9, 9)], [(7, 7, 8, 9), (0, 0, 1, 1)]]
    masks = torch.zeros(3, 10, 10, dtype=torch.bool)
    for k, own in enumerate(boxes):
        for left, top, right, bottom in own:
            masks[k, top : bottom + 1, left : right + 1] = True
    for regions in (boxes, masks, masks[:, None]):
        mass, rank = mass_accuracy(MAPS, regions), rank_accuracy(MAPS, regions)
        for k in range(3):
            pixels = MAPS[k].sum(0)
            places = [
                (float(pixels[y, x]), bool(masks[k, y, x])) for y in range(10) for x in range(10)
            ]
            positive = [(value, inside) for value, inside in places if value > 0]
            share = sum(v for v, inside in positive if inside) / sum(v for v, _ in positive)
            assert float(mass[k]) == pytest.approx(share)
            count = int(masks[k].sum())
            hits = sum(inside for _, inside in sorted(places, reverse=True)[:count])
            assert float(rank[k]) == pytest.approx(hits / count)
    assert torch.equal(energy_pointing_game(MAPS, boxes), mass_accuracy(MAPS, boxes))
    around = [*boxes[:2], [(0, 0, 8, 9)]]  # the box around the third mask
    assert torch.equal(energy_pointing_game(MAPS, masks), mass_accuracy(MAPS, around))
    assert mass_accuracy(-MAPS.abs(), boxes).tolist() == [0, 0, 0]
    falling = -torch.arange(9.0).view(1, 1, 3, 3)
    assert rank_accuracy(falling, [[(1, 0, 1, 0)]]).tolist() == [0]  # the second strongest
    assert rank_accuracy(falling, [[(0, 0, 1, 0)]]).tolist() == [1]


@pytest.mark.parametrize(
    ("regions", "said"),
    [
        (torch.zeros(3, 10, 10), "every image needs a region"),
        (torch.ones(3, 10, 9), "do not fit maps"),
        ([[(0, 0, 1, 1)]], "boxes were given for 1 images, maps for 3"),
        ([[(0, 0, 1, 1)], [(0, 0, 1)], [(0, 0, 1, 1)]], "is not a box"),
        ([[(0, 0, 1, 1)], [], [(0, 0, 1, 1)]], "every image needs a region"),
    ],
)
def test_regions_that_do_not_fit(regions: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rank_accuracy(MAPS, regions)  # type: ignore[arg-type]


def test_gini_by_hand() -> None:
    """Half the mean absolute difference of all pairs, divided by the mean."""
    for k, found in enumerate(sparseness(MAPS).tolist()):
        values = MAPS[k].sum(0).abs().flatten().tolist()
        differences = sum(abs(a - b) for a in values for b in values) / len(values) ** 2
        assert found == pytest.approx(differences / 2 / (sum(values) / len(values)))
    assert sparseness(torch.zeros(1, 4)).tolist() == [0.0]
    assert sparseness(torch.full((1, 1, 2, 2), -2.0)).tolist() == [0.0]
