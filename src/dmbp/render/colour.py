"""The colours of the pictures, and how the strength of evidence becomes a colour.

The figure of a benchmark (`benchmark.py`) and the text, lines and background of the HTML page
(`templates/report.html`) have other colours, which are defined there.

A palette has one hue for evidence in favour of the class and one for evidence against it; white
means no evidence. Both hues darken evenly from white, so that equal strengths look equally strong.
Nearly everyone can tell red from blue; purple and orange are the second choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy
import torch
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[numpy.float64]


@dataclass(frozen=True)
class Palette:
    """A diverging colour map.

    `negative_shades` run from dark (strong evidence against the class) to pale, `positive_shades`
    from pale to dark (strong evidence for it). The words name the two hues in the report.
    `neutral` is the colour of the nuisance term.
    """

    negative_shades: tuple[str, ...]
    positive_shades: tuple[str, ...]
    positive_word: str
    negative_word: str
    neutral: str = "#8c8c8c"

    @property
    def colormap(self) -> LinearSegmentedColormap:
        """The colour map over [0, 1], white in the middle."""
        shades = [*self.negative_shades, "#ffffff", *self.positive_shades]
        return LinearSegmentedColormap.from_list("", shades)

    @property
    def positive(self) -> str:
        """The colour of bars and words for evidence in favour of the class."""
        return self.positive_shades[-2]

    @property
    def negative(self) -> str:
        """The colour of bars and words for evidence against the class."""
        return self.negative_shades[1]

    def tint(self, sign: int) -> str:
        """Return the colour of changed pixels that speak for or against the class, or neither."""
        return {1: self.positive_shades[2], -1: self.negative_shades[2], 0: CONTROL}[sign]


CONTROL = "#2fc295"
"""The tint of the control's pixels: no palette has a green."""

# The shades have CIE lightness 24, 42, 60, 77 and 91 on both sides, at one hue each.
# tests/render/test_colour.py checks that equal strengths on both sides are equally light.
PALETTES: Mapping[str, Palette] = {
    "red-blue": Palette(
        negative_shades=("#003d5e", "#00699f", "#2c98dd", "#90c3f5", "#d6e7fc"),
        positive_shades=("#fededa", "#ffa79e", "#ef635d", "#c0212d", "#731018"),
        positive_word="red",
        negative_word="blue",
    ),
    "purple-orange": Palette(
        negative_shades=("#572f0d", "#965112", "#d77924", "#f5af7a", "#fce0ce"),
        positive_shades=("#ebe1f7", "#cdb4ed", "#a37fd9", "#7350af", "#442a73"),
        positive_word="purple",
        negative_word="orange",
    ),
}
RED_BLUE = PALETTES["red-blue"]

CURVES = ("#222222", "#009e73", "#e69f00")
"""Colours of curves that are compared: neither red nor blue, which are evidence.

Colour-blind people can tell them apart, also by lightness (Okabe and Ito's set).
"""

OTHER_CURVES = "#c8c8c8"
INK = "#222222"
"""The colour of bars and curves that are neither for nor against the class."""

MARKER = "#b2182b"
AXIS = "#888888"
GRID = "#dddddd"
FRAME = "#cccccc"
REGION_HALO = "#ffffff"
SIGNAL = "#444444"

CLIP_PERCENTILE = 99.5
"""The strongest half per cent of pixels share the darkest colour, so that outliers do not fade the
rest."""


EVIDENCE_PERCENTILE = 98.0
"""The same for evidence over a photo: its peaks are small, and the rest must be visible, too."""


def darkest_magnitude(*arrays: Array, percentile: float = CLIP_PERCENTILE) -> float:
    """Return the magnitude that gets the darkest colour, one for all arrays of a figure."""
    magnitude = numpy.abs(numpy.concatenate([array.ravel() for array in arrays]))
    nonzero = magnitude[magnitude > 0]
    return float(numpy.percentile(nonzero, percentile)) if nonzero.size else 1.0


def smooth_map(array: Array, sigma: float) -> Array:
    """Smooth a map (height, width) with a Gaussian of `sigma` pixels; its sum is nearly kept."""
    if sigma <= 0:
        return array
    radius = max(1, round(3 * sigma))
    weights = numpy.exp(-0.5 * (numpy.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    image = torch.from_numpy(numpy.ascontiguousarray(array, dtype=numpy.float64))
    kernel = torch.from_numpy(weights)
    return _convolve_down(_convolve_down(image, kernel).T, kernel).T.contiguous().numpy()


ROWS_AT_ONCE = 256


def _convolve_down(image: Tensor, weights: Tensor) -> Tensor:
    """Convolve each column of a map with a symmetric kernel, padded with zeros.

    Blocks of rows are multiplied by banded matrices. For a map of 1024 × 1024, this takes a tenth
    of the time of PyTorch's convolution of doubles, which unrolls the map to two gigabytes.
    """
    height, radius = len(image), len(weights) // 2
    result = torch.empty(image.shape, dtype=image.dtype)
    for start in range(0, height, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, height)
        first, last = max(0, start - radius), min(height, stop + radius)
        distance = torch.arange(first, last) - torch.arange(start, stop)[:, None]
        band = torch.where(
            distance.abs() <= radius, weights[distance.clamp(-radius, radius) + radius], 0.0
        )
        result[start:stop] = band @ image[first:last]
    return result


COARSE = 4.0
"""How much wider a map without fine detail is smoothed."""

DETAIL_LIMITS = 0.1, 0.5
"""A map has no fine detail if smoothing moves the first share of its mass, or less, and nothing but
detail if it moves the second share.

Measured: windows drawn evenly have 0.02 to 0.11, and evidence that follows pixels 0.62 to 0.80.
"""

MOST_DETAIL = 0.5
"""The most of a map that is drawn in fine detail; the rest is a glow around it.

Without the glow, detail ends abruptly where a window ends.
"""


def smooth_evidence(array: Array, sigma: float) -> Array:
    """Smooth a signed map (height, width) for the eye.

    A sign that has fine detail is smoothed by `sigma` pixels and stands in a glow. One that has
    none, because the worth of whole windows is spread evenly, is smoothed `COARSE` times as far:
    the edges of windows would look like boxes on the photo, and there is no detail to lose.
    """
    if sigma <= 0:
        return array
    result = numpy.zeros(array.shape)
    # Outside the map there is no evidence to mix in: its borders must not fade.
    inside = [smooth_map(numpy.ones(array.shape), k) for k in (sigma, COARSE * sigma)]
    for sign in (1, -1):
        own = numpy.clip(sign * array, 0, None)
        mass = own.sum()
        if mass > 0:
            fine = smooth_map(own, sigma) / inside[0]
            coarse = smooth_map(own, COARSE * sigma) / inside[1]
            moved = float(numpy.abs(own - fine).sum() / mass)
            detail = MOST_DETAIL * float(numpy.interp(moved, DETAIL_LIMITS, (0, 1)))
            result += sign * (detail * fine + (1 - detail) * coarse)
    return result


TINT = 0.7
"""How much of a changed pixel's colour is the tint."""


def tint_changed(photo: Array, replaced: Array, changed: Array, colour: str) -> Array:
    """Draw a photo (height, width, 3) with the pixels of a mask (height, width) changed.

    They show what replaces them under a translucent tint, exactly where they are.
    """
    tinted = (1 - TINT) * replaced + TINT * numpy.array(to_rgb(colour))
    return numpy.clip(numpy.where(changed[..., None] > 0, tinted, photo), 0, 1)


def signed_over_photo(
    attribution: Array, photo: Array, *, scale: float, faint: float, palette: Palette = RED_BLUE
) -> Array:
    """Draw a signed map (height, width) over a pale grey copy of the photo; RGB in [0, 1].

    `scale` is the magnitude that gets the darkest colour. `faint` is how visible the photo
    is where there is no evidence, from 0 (white) to 1.
    """
    strength = numpy.clip(attribution / scale, -1, 1)
    colour = palette.colormap(0.5 + 0.5 * strength)[..., :3]
    grey = photo.mean(-1, keepdims=True)
    background = 1 - faint * (1 - grey)
    opacity = numpy.abs(strength)[..., None] ** 0.5  # weak evidence still tints the photo
    return opacity * colour + (1 - opacity) * background


def linear_map_colours(linear_map: Array, *, scale: float) -> Array:
    """Draw a linear map (height, width, channels) around mid-grey, as the paper does."""
    return numpy.clip(0.5 + 0.5 * linear_map / scale, 0, 1)
