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

Box = tuple[float, float, float, float]
"""A box's left, top, right and bottom, in pixels of the map."""

TOLERANCE = 15
"""The paper's tolerance, in pixels of the map, for maps with a side of 224."""


def pointing_game(
    attribution: Tensor, boxes: Sequence[Sequence[Box]], *, tolerance: float = TOLERANCE
) -> Tensor:
    """Return whether each image's strongest pixel lies on an object of the class it explains.

    Args:
        attribution: Maps (images, channels, height, width).
        boxes: For each image, the boxes of that class: (left, top, right, bottom) in pixels of
            the map.
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
    strongest = pixel_ranks(attribution, attribution).flatten(1).argmin(1)
    width = attribution.shape[3]
    hits = [
        any(_is_near(point % width, point // width, _parse_box(box), tolerance) for box in own)
        for point, own in zip(strongest.tolist(), boxes, strict=True)
    ]
    return torch.tensor(hits)


def _parse_box(box: Any) -> Box:
    """Return a box as four numbers."""
    try:
        left, top, right, bottom = (float(edge) for edge in box)
    except (TypeError, ValueError) as error:
        raise InputError(
            "boxes must be a list of (left, top, right, bottom) for every image; "
            f"{box!r} is not a box"
        ) from error
    if right < left or bottom < top:
        raise InputError(f"a box is (left, top, right, bottom), but {box!r} ends before it begins")
    return left, top, right, bottom


def _is_near(x: float, y: float, box: Box, tolerance: float) -> bool:
    """Return whether a point is at most `tolerance` away from a box."""
    left, top, right, bottom = box
    across = max(left - x, x - right, 0.0)
    down = max(top - y, y - bottom, 0.0)
    return across**2 + down**2 <= tolerance**2
