"""Trained networks: of several shapes on an image, the red lies on the one that is asked about.

Each network has a single test, so that it is trained once, also if tests run in several processes.
"""

from functools import cache

import pytest
import torch
from torch import Tensor

import dmbp
from dmbp.linear.targets import read_target
from dmbp.targets import Box, FoundBox, NamedTarget, Region, YoloBoxes, find_boxes
from tests.shapes import SIDE, STRIDES, Shape, scene, trained_detector, trained_unet

ON_SHAPE = 0.8
"""The least share of positive mass on the shape that is asked about."""

LAYOUT = YoloBoxes(
    tuple((SIDE // k, SIDE // k, k) for k in STRIDES), has_objectness=True, is_decoded=False
)


@cache
def crowded_scenes(count: int = 2) -> list[tuple[Tensor, list[Shape]]]:
    """Images that were not learned from, with three or four shapes each."""
    generator = torch.Generator().manual_seed(99)
    found: list[tuple[Tensor, list[Shape]]] = []
    while len(found) < count:
        image, _, shapes = scene(generator)
        if len(shapes) >= 3:
            found.append((image[None], shapes))
    return found


def share_on(shape: Shape, attribution: Tensor) -> float:
    """The share of positive mass in the square around a shape, two pixels wider on each side."""
    _, x, y, radius = shape
    middle = torch.arange(SIDE) + 0.5
    inside = ((middle - y).abs() < radius + 2)[:, None] & ((middle - x).abs() < radius + 2)
    positive = attribution.sum(0).clamp(min=0)
    return float(positive[inside].sum() / positive.sum())


def region(shape: Shape) -> NamedTarget:
    index, x, y, radius = shape
    return Region(index, box=(x - radius, y - radius, x + radius, y + radius))


@pytest.mark.slow
def test_a_unets_evidence_for_a_shape_is_the_shape() -> None:
    unet = trained_unet()
    for image, shapes in crowded_scenes():
        targets = [region(shape) for shape in shapes]
        found = dmbp.DMBP(unet).explain(image, target=targets)
        shares = [share_on(k, v) for k, v in zip(shapes, found.attribution, strict=True)]
        assert min(shares) >= ON_SHAPE, shares
        assert found.tested is not None
        assert found.tested.is_confirmed.all()
        elsewhere = [share_on(k, v) for k, v in zip(shapes[1:], found.attribution, strict=False)]
        assert max(elsewhere) < 1 - ON_SHAPE


@pytest.mark.slow
def test_a_detectors_evidence_for_a_box_is_its_shape() -> None:
    detector = trained_detector()
    for image, shapes in crowded_scenes():
        with torch.no_grad():
            outputs = detector(image)
        boxes = find_boxes(outputs[0], (SIDE, SIDE), LAYOUT)
        owners = [nearest(shape, boxes) for shape in shapes]
        assert [boxes[k].index for k in owners] == [index - 1 for index, *_ in shapes]
        found = dmbp.DMBP(detector).explain(image, target=[Box(k) for k in owners])
        shares = [share_on(k, v) for k, v in zip(shapes, found.attribution, strict=True)]
        assert min(shares) >= ON_SHAPE, shares
        near = read_target(
            [Box(near=(x, y)) for _, x, y, _ in shapes],
            outputs=outputs.flatten(1),
            shape=tuple(outputs.shape[1:]),
            size=(SIDE, SIDE),
        )
        scores = near.scores(outputs.flatten(1).expand(len(near), -1))
        torch.testing.assert_close(scores, found.output)


def nearest(shape: Shape, boxes: list[FoundBox]) -> int:
    """The number of the box whose middle is nearest to a shape's."""
    _, x, y, _ = shape
    return min(
        range(len(boxes)),
        key=lambda k: (boxes[k].middle[0] - x) ** 2 + (boxes[k].middle[1] - y) ** 2,
    )
