"""Turns tensors into pictures: photos, bands of images, and views of volumes."""

from collections.abc import Sequence
from typing import Any

import numpy
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from dmbp.display import encode_figure
from dmbp.errors import InputError
from dmbp.render.colour import Array


class Picture(Figure):
    """A matplotlib figure that shows itself below the cell of a notebook."""

    def _repr_png_(self) -> bytes:
        return encode_figure(self, ".png")


def check_drawable(inputs: Tensor) -> None:
    """Raise an `InputError` if inputs are not a batch of images or volumes."""
    if inputs.dim() not in (4, 5):
        raise InputError(
            "images (batch, channel, height, width) and volumes (batch, channel, depth, height, "
            f"width) can be drawn as pictures, not inputs of shape {tuple(inputs.shape)}"
        )


def shown_bands(inputs: Tensor, bands: Sequence[int] | None) -> tuple[int, ...]:
    """Return the indices of the channels that pictures show, one or three of them.

    Args:
        inputs: Images or volumes, (batch, channel, …).
        bands: Their numbers, from 1, in the order red, green, blue. By default the first three of
            an image, if it has so many; otherwise, and for volumes that have not exactly three,
            the first.

    Raises:
        InputError: If there is no such band, or another number of them than one or three.
    """
    count = inputs.shape[1]
    if bands is None:
        is_colour = count == 3 or (count > 3 and inputs.dim() == 4)
        return (0, 1, 2) if is_colour else (0,)
    if len(bands) not in (1, 3):
        raise InputError(
            f"a picture shows one band, or three as red, green and blue, not {len(bands)}"
        )
    for band in bands:
        if not 1 <= band <= count:
            raise InputError(f"there is no band {band}: the input has bands 1 to {count}")
    return tuple(band - 1 for band in bands)


def parse_photo(photo: Any, size: tuple[int, int]) -> Array:
    """Return a Pillow image, an array or a tensor of this size as RGB in [0, 1].

    Integers range from 0 to 255, as in files. Channels come last; in a tensor they may come first.
    """
    if isinstance(photo, Tensor):
        photo = photo.detach().cpu()
        photo = (photo.permute(1, 2, 0) if len(photo) in (1, 3) else photo).numpy()
    array = numpy.asarray(photo.convert("RGB") if isinstance(photo, Image.Image) else photo)
    array = array / 255 if numpy.issubdtype(array.dtype, numpy.integer) else array
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3) or array.shape[:2] != size:
        raise InputError(
            f"a photo of shape {array.shape} was given for an input of {size[0]} × {size[1]} "
            f"pixels; give the photo as the model saw it, of shape {(*size, 3)}"
        )
    if not (array.min() >= 0 and array.max() <= 1):
        raise InputError(
            f"a photo's values must be between 0 and 1, or whole numbers to 255, but range from "
            f"{array.min():.3g} to {array.max():.3g}"
        )
    return numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def to_picture(image: Tensor) -> Array:
    """Return an image (channels, *size) with channels last; one channel becomes three."""
    return _in_colour(image.detach().cpu().double().movedim(0, -1).numpy())


def _in_colour(array: Array) -> Array:
    """Return an array (*size, channels) whose one channel, if it has one, is seen as three.

    The three share their memory, because a volume of a scanner takes gigabytes.
    """
    return numpy.broadcast_to(array, (*array.shape[:-1], 3)) if array.shape[-1] == 1 else array


def stretch_contrast(image: Tensor) -> Array:
    """Return an image with its darkest value black and its brightest white."""
    array = image.detach().cpu().double().movedim(0, -1).numpy()
    low, high = array.min(), array.max()
    return _in_colour((array - low) / max(high - low, 1e-12))


DARKEST, BRIGHTEST = 1.0, 99.0
"""The percentiles of a band that are black and white, so that few outliers do not hide the rest."""


def stretch_bands(image: Tensor) -> Array:
    """Return an image (channels, *size) with the contrast of each channel stretched by itself."""
    array = image.detach().cpu().double().movedim(0, -1).numpy()
    places = tuple(range(array.ndim - 1))
    low, high = numpy.percentile(array, (DARKEST, BRIGHTEST), axis=places, keepdims=True)
    if (high <= low).all():  # nearly everything has one value
        return stretch_contrast(image)
    stretched = array - low
    stretched /= numpy.maximum(high - low, 1e-12)
    return _in_colour(numpy.clip(stretched, 0, 1, out=stretched))
