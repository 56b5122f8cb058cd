"""The pointing game: whether the strongest pixel is on the object.

    >>> maps = torch.zeros(1, 1, 8, 8)
    >>> maps[0, 0, 2, 5] = 1.0
    >>> pointing_game(maps, [[(4, 1, 6, 3)]], tolerance=0).tolist()
    [True]

Zhang et al., "Top-down Neural Attention by Excitation Backprop", ECCV 2016: a hit within 15 pixels
of a box counts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import InputError
from dmbp.metrics.insertion import pixel_ranks

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels of the map."""

TOLERANCE = 15
"""Pixels of the map, whatever its size; meant for a side of 224."""


def pointing_game(
    attribution: Tensor, boxes: Sequence[Sequence[Box]], *, tolerance: float = TOLERANCE
) -> Tensor:
    """Whether each image's strongest pixel lies on a box of its class, (images,)."""
    if len(boxes) != len(attribution):
        raise InputError(f"boxes were given for {len(boxes)} images, maps for {len(attribution)}")
    if not all(len(own) > 0 for own in boxes):
        raise InputError("every image needs at least one box of the class its map is about")
    if tolerance < 0:
        raise InputError(f"tolerance is a distance in pixels, not {tolerance}")
    strongest = pixel_ranks(attribution, attribution).flatten(1).argmin(1)
    width = attribution.shape[3]
    hits = [
        any(_within(point % width, point // width, _read(box), tolerance) for box in own)
        for point, own in zip(strongest.tolist(), boxes, strict=True)
    ]
    return torch.tensor(hits)


def _read(box: Any) -> Box:
    try:
        left, top, right, bottom = (float(edge) for edge in box)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a box is (left, top, right, bottom), and every image has a list of them, not {box!r}"
        ) from error
    if right < left or bottom < top:
        raise InputError(f"a box is (left, top, right, bottom); {box!r} ends before it begins")
    return left, top, right, bottom


def _within(x: float, y: float, box: Box, tolerance: float) -> bool:
    """Whether a point is no further than `tolerance` from a box."""
    left, top, right, bottom = box
    across = max(left - x, x - right, 0.0)
    down = max(top - y, y - bottom, 0.0)
    return across**2 + down**2 <= tolerance**2
