"""The pointing game: whether the strongest pixel lies on the object.

    >>> maps = torch.zeros(1, 1, 8, 8)
    >>> maps[0, 0, 2, 5] = 1.0
    >>> pointing_game(maps, [[(4, 1, 6, 3)]], tolerance=0).tolist()
    [True]

A point within 15 pixels of a box counts as a hit, as in Zhang et al., "Top-down Neural Attention by
Excitation Backprop", ECCV 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import InputError
from dmbp.metrics.insertion import pixel_ranks

Box = Sequence[float]
"""A box's left, top, right and bottom, in pixels of the map. In general: where it begins along
every dimension, the last one first, then where it ends, so that a box of a signal is (start, end),
and one of a volume is (left, top, front, right, bottom, back)."""

TOLERANCE = 15
"""The paper's tolerance, in pixels of the map, for maps with a side of 224."""


def pointing_game(
    attribution: Tensor, boxes: Sequence[Sequence[Box]], *, tolerance: float = TOLERANCE
) -> Tensor:
    """Return whether each image's strongest pixel lies on an object of the class it explains.

    Args:
        attribution: Maps (images, channels, height, width), or those of signals or volumes.
        boxes: For each image, the boxes of that class: (left, top, right, bottom) in pixels of
            the map, (start, end) in a signal, (left, top, front, right, bottom, back) in a volume.
        tolerance: How far from a box a pixel may lie, in pixels of the map.

    Returns:
        A truth value for each image, (images,).

    Raises:
        InputError: If the boxes do not fit the maps, an image has none, or `tolerance` is negative.
    """
    if len(boxes) != len(attribution):
        raise InputError(f"boxes were given for {len(boxes)} images, maps for {len(attribution)}")
    if not all(len(own) > 0 for own in boxes):
        raise InputError("every image needs at least one box of the class that its map explains")
    if tolerance < 0:
        raise InputError(f"tolerance must be a distance of 0 pixels or more, not {tolerance}")
    if attribution.dim() < 3:
        raise InputError(
            "the pointing game needs maps with places (images, channels, height, width), not "
            f"attributions of shape {tuple(attribution.shape)}"
        )
    strongest = pixel_ranks(attribution, attribution).flatten(1).argmin(1)
    size = tuple(attribution.shape[2:])
    hits = [
        any(_distance(point, box) <= tolerance for box in (parse_box(k, len(size)) for k in own))
        for point, own in zip(_points(strongest, size), boxes, strict=True)
    ]
    return torch.tensor(hits)


def _points(index: Tensor, size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return where pixels with these flat indices are, the last dimension first."""
    along = torch.unravel_index(index.cpu(), size)
    return [tuple(point) for point in torch.stack(along[::-1], 1).tolist()]


EDGES = {1: "(start, end)", 2: "(left, top, right, bottom)"}
ALL_EDGES = "(left, top, front, right, bottom, back)"


def parse_box(box: Any, dims: int) -> Box:
    """Return a box as numbers: where it begins along each dimension, then where it ends."""
    edges = EDGES.get(dims, ALL_EDGES)
    try:
        numbers = [float(edge) for edge in box]
    except (TypeError, ValueError) as error:
        raise InputError(_no_box(box, edges)) from error
    if len(numbers) != 2 * dims:
        raise InputError(_no_box(box, edges))
    if any(end < start for start, end in zip(numbers[:dims], numbers[dims:], strict=True)):
        raise InputError(f"a box is {edges}, but {box!r} ends before it begins")
    return numbers


def _no_box(box: Any, edges: str) -> str:
    return f"boxes must be a list of {edges} for every image; {box!r} is not a box"


def _distance(point: Sequence[float], box: Box) -> float:
    """Return how far a point is from a box."""
    dims = len(point)
    sides = zip(point, box[:dims], box[dims:], strict=True)
    return sum(max(start - k, k - end, 0.0) ** 2 for k, start, end in sides) ** 0.5
