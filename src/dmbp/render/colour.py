"""Attributions as colours: one hue speaks for the class, one against it, white says nothing.

Both arms of a palette darken evenly from white, so equal strengths look equally strong. Red and
blue are told apart by all but a few people; purple and orange are the second choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy
import torch
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import NDArray
from torch.nn import functional

Array = NDArray[numpy.float64]


@dataclass(frozen=True)
class Palette:
    """A diverging scale, from strongly against (dark) over white to strongly for (dark)."""

    against: tuple[str, ...]
    toward: tuple[str, ...]
    positive_word: str
    negative_word: str
    neither: str = "#8c8c8c"

    @property
    def scale(self) -> LinearSegmentedColormap:
        """The colour scale over [0, 1], white in the middle."""
        return LinearSegmentedColormap.from_list("", [*self.against, "#ffffff", *self.toward])

    @property
    def positive(self) -> str:
        """The colour of bars and words that speak for the class."""
        return self.toward[-2]

    @property
    def negative(self) -> str:
        """The colour of bars and words that speak against the class."""
        return self.against[1]


# CIE lightness 24, 42, 60, 77 and 91 on both sides, at one hue each.
PALETTES: Mapping[str, Palette] = {
    "red-blue": Palette(
        ("#003d5e", "#00699f", "#2c98dd", "#90c3f5", "#d6e7fc"),
        ("#fededa", "#ffa79e", "#ef635d", "#c0212d", "#731018"),
        positive_word="red",
        negative_word="blue",
    ),
    "purple-orange": Palette(
        ("#572f0d", "#965112", "#d77924", "#f5af7a", "#fce0ce"),
        ("#ebe1f7", "#cdb4ed", "#a37fd9", "#7350af", "#442a73"),
        positive_word="purple",
        negative_word="orange",
    ),
}
RED_BLUE = PALETTES["red-blue"]

CLIP_PERCENTILE = 99.5
"""The strongest half per cent of pixels share the darkest colour; else outliers take it all."""


def strongest(*arrays: Array) -> float:
    """The magnitude that gets the darkest colour, one for all arrays of a figure."""
    magnitude = numpy.abs(numpy.concatenate([array.ravel() for array in arrays]))
    nonzero = magnitude[magnitude > 0]
    return float(numpy.percentile(nonzero, CLIP_PERCENTILE)) if nonzero.size else 1.0


def smooth(array: Array, sigma: float) -> Array:
    """A map (height, width) smoothed by a Gaussian of `sigma` pixels; its sum is nearly kept."""
    if sigma <= 0:
        return array
    radius = max(1, round(3 * sigma))
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    weights = (weights / weights.sum()).view(1, 1, -1, 1)
    image = torch.from_numpy(numpy.ascontiguousarray(array, dtype=numpy.float64))[None, None]
    for kernel in (weights, weights.transpose(2, 3)):
        padding = (kernel.shape[2] // 2, kernel.shape[3] // 2)
        image = functional.conv2d(image, kernel, padding=padding)
    return image[0, 0].numpy()


def signed_over_photo(
    attribution: Array, photo: Array, *, scale: float, faint: float, palette: Palette = RED_BLUE
) -> Array:
    """A signed map (height, width) over a pale grey copy of the photo; RGB in [0, 1].

    `faint` is how much of the photo shows where nothing speaks: 0 is white.
    """
    strength = numpy.clip(attribution / scale, -1, 1)
    colour = palette.scale(0.5 + 0.5 * strength)[..., :3]
    grey = photo.mean(-1, keepdims=True)
    background = 1 - faint * (1 - grey)
    opacity = numpy.abs(strength)[..., None] ** 0.5  # weak evidence still tints the photo
    return opacity * colour + (1 - opacity) * background


def linear_map_colours(linear_map: Array, *, scale: float) -> Array:
    """A linear map (height, width, channel) as an image around mid-grey, as the paper shows it."""
    return numpy.clip(0.5 + 0.5 * linear_map / scale, 0, 1)
