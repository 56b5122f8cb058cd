"""Attributions as colours: red speaks for the class, blue against it, white says nothing.

Both arms darken evenly from white, so equal strengths look equally strong, also to colour-blind
eyes: the two hues differ in blue against yellow-red, which all but a few people see.
"""

import numpy
import torch
from matplotlib.colors import LinearSegmentedColormap
from numpy.typing import NDArray
from torch.nn import functional

Array = NDArray[numpy.float64]

FOR, AGAINST, NEITHER = "#b2182b", "#2166ac", "#8c8c8c"

# Colour steps of equal lightness on both sides of white (ColorBrewer's RdBu with a white middle).
SIGNED = LinearSegmentedColormap.from_list(
    "signed",
    [
        *("#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0"),
        "#ffffff",
        *("#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"),
    ],
)

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


def signed_over_photo(attribution: Array, photo: Array, *, scale: float, faint: float) -> Array:
    """A signed map (height, width) over a pale grey copy of the photo; RGB in [0, 1].

    `faint` is how much of the photo shows where nothing speaks: 0 is white.
    """
    strength = numpy.clip(attribution / scale, -1, 1)
    colour = SIGNED(0.5 + 0.5 * strength)[..., :3]
    grey = photo.mean(-1, keepdims=True)
    background = 1 - faint * (1 - grey)
    opacity = numpy.abs(strength)[..., None] ** 0.5  # weak evidence still tints the photo
    return opacity * colour + (1 - opacity) * background


def linear_map_colours(linear_map: Array, *, scale: float) -> Array:
    """A linear map (height, width, channel) as an image around mid-grey, as the paper shows it."""
    return numpy.clip(0.5 + 0.5 * linear_map / scale, 0, 1)
