"""Scores of maps against masks of A, B and distractors. No map is blurred or smoothed.

s is a map, summed over channels; s⁺ and s⁻ are its positive and its negative part, as sizes.

    positive on A    Σ_A s⁺ / Σ s⁺
    negative on B    Σ_B s⁻ / Σ s⁻
    on distractors   Σ_D |s| / Σ |s|, where the right share is 0
    on ground        the same outside all shapes
    sign accuracy    the mean of [Σ_A s > 0] and [Σ_B s < 0]: is each shape, as a whole, coloured
                     as it should be?
    signed mass      the mean of Σ_A s⁺ / Σ_A |s| and Σ_B s⁻ / Σ_B |s|: how much of what lies on
                     each shape has the right sign?

A share whose denominator is 0 is 0: a map that shows nothing negative shows no B. Noise has shares
near the areas, and 1/2 in the last two. A method without negative values also has at most 1/2 in
these two, for colouring every A as it should and no B; it cannot have a share on B, so the table
has a dash there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SCORES = (
    "positive on A",
    "negative on B",
    "on distractors",
    "on ground",
    "sign accuracy",
    "signed mass",
)


@dataclass(frozen=True)
class Masks:
    """The pixels of A, B and the distractors for each image: (images, height, width), boolean."""

    a: Tensor
    b: Tensor
    distractors: Tensor

    def areas(self) -> dict[str, Tensor]:
        """Return what share of each image every region covers."""
        ground = ~(self.a | self.b | self.distractors)
        regions = {"A": self.a, "B": self.b, "distractors": self.distractors, "ground": ground}
        return {name: region.double().mean((1, 2)) for name, region in regions.items()}


def score_maps(maps: Tensor, masks: Masks) -> dict[str, Tensor]:
    """Return every score of each image.

    Args:
        maps: Attributions, (images, channels, height, width).
        masks: Where A, B and the distractors are.

    Returns:
        A tensor (images,) for each name in `SCORES`.
    """
    pixels = maps.double().sum(1)
    positive, negative, size = pixels.clamp(min=0), (-pixels).clamp(min=0), pixels.abs()
    a, b = masks.a, masks.b
    right = [
        _share(_mass(positive, a), _mass(size, a)),
        _share(_mass(negative, b), _mass(size, b)),
    ]
    signs = [_mass(pixels, a) > 0, _mass(pixels, b) < 0]
    return {
        "positive on A": _share(_mass(positive, a), _mass(positive)),
        "negative on B": _share(_mass(negative, b), _mass(negative)),
        "on distractors": _share(_mass(size, masks.distractors), _mass(size)),
        "on ground": _share(_mass(size, ~(a | b | masks.distractors)), _mass(size)),
        "sign accuracy": torch.stack(signs).double().mean(0),
        "signed mass": torch.stack(right).mean(0),
    }


def is_unsigned(maps: Tensor) -> bool:
    """Return whether no pixel of any map is negative."""
    return bool((maps.sum(1) >= 0).all())


def _mass(pixels: Tensor, region: Tensor | None = None) -> Tensor:
    return (pixels if region is None else pixels * region).sum((1, 2))


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, 0.0)
