"""Draws the map of any method over its photo: ours, Captum's or an array from a file.

    figure = dmbp.render.show(photo, maps)                       # one map
    figure = dmbp.render.grid(photo, {"GradCAM": a, "IG": b})    # several, side by side

Colours, overlay and legend are those of `dmbp explain`. Both return a matplotlib figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from dmbp.errors import InputError
from dmbp.render.colour import Array
from dmbp.render.comparison import shift_to_zero
from dmbp.render.panel import PanelStyle, draw_legend, show_image, write_note
from dmbp.render.pictures import Picture, stretch_contrast
from dmbp.render.titles import title_height
from dmbp.validation import suggests_keywords

COLUMNS = 4
"""How many pictures fit beside each other."""


@suggests_keywords
def show(
    photo: Any,
    attribution: Any,
    *,
    caption: str = "for and against",
    style: PanelStyle | None = None,
) -> Figure:
    """Draw a photo, and a map over it.

    Args:
        photo: A Pillow image, an array (height, width, 3) or a tensor (3, height, width). Whole
            numbers range to 255 and others to 1; a tensor with other values, such as a normalised
            input, is stretched. It shows what the model saw, in the map's size or in a larger one
            of the same shape.
        attribution: The map of one input: a tensor or an array (1, channels, height, width),
            (channels, height, width) or (height, width). Positive values speak for what was
            explained.
        caption: The title above the map.
        style: The colours, and how far the map is smoothed.

    Returns:
        A matplotlib figure; `figure.savefig("map.png")` writes it.

    Raises:
        InputError: If the photo or the map has another shape, or the map has values that are no
            numbers.
    """
    return grid(photo, {caption: attribution}, style=style)


@suggests_keywords
def grid(photo: Any, attributions: Mapping[str, Any], *, style: PanelStyle | None = None) -> Figure:
    """Draw a photo, and several maps over it, each on its own scale.

    Args:
        photo: As for `show`.
        attributions: A map for each title, as for `show`.
        style: The colours, and how far maps are smoothed.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: As for `show`, or if there is no map.
    """
    if not isinstance(attributions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError('give maps by their titles, such as {"GradCAM": maps}')
    if not attributions:
        raise InputError("there is no map to draw: give one for each title")
    style = style or PanelStyle()
    maps = {title: as_map(values) for title, values in attributions.items()}
    picture = as_picture(photo)
    height, width = picture.shape[:2]
    for values in maps.values():
        _check_shape(values, height, width)
    columns = min(COLUMNS, len(maps) + 1)
    rows = math.ceil((len(maps) + 1) / columns)
    above = title_height(*maps)
    size = (
        style.row_height * columns * 0.9,
        rows * (style.row_height * 0.9 * min(1.3, height / width) + 0.35 + above) + 0.5,
    )
    figure = Picture(figsize=size, layout="constrained")
    places = figure.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [0.04])
    show_image(figure.add_subplot(places[0, 0]), picture, "the photo")
    for place, (title, values) in enumerate(maps.items(), start=1):
        axis = figure.add_subplot(places[place // columns, place % columns])
        shown = shift_to_zero(resized(values, (width, height)))
        show_image(axis, style.evidence_image(shown, picture), title)
    draw_legend(figure, figure.add_subplot(places[-1, 0]), style.palette)
    if len(maps) > 1:
        write_note(figure.add_subplot(places[-1, 1]), "each map on its own colour scale")
    return figure


def _check_shape(values: Array, height: int, width: int) -> None:
    """Raise an `InputError` if a map would have to be squeezed to lie over its photo."""
    down, across = values.shape
    if abs(down * width - across * height) > max(height, width):
        raise InputError(
            f"a map of {down}×{across} does not lie over a photo of {height}×{width} (height×"
            "width): give the photo as the model saw it, cropped as it was for the model"
        )


def as_map(values: Any) -> Array:
    """Return the map of one input as (height, width); channels are added up.

    Raises:
        InputError: If it is not the map of one image, or has values that are no numbers.
    """
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    array = numpy.asarray(array, dtype=numpy.float64)
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 3:
        array = array.sum(0)
    if array.ndim != 2:
        raise InputError(
            f"a map of shape {numpy.shape(values)} was given: give that of one image, (channels, "
            "height, width) or (height, width)"
        )
    if not numpy.isfinite(array).all():
        raise InputError("the map has values that are NaN or infinite")
    return array


def as_picture(photo: Any) -> Array:
    """Return a photo in any form as RGB in [0, 1], (height, width, 3).

    Raises:
        InputError: If it has another shape.
    """
    if isinstance(photo, Image.Image):
        return numpy.asarray(photo.convert("RGB"), dtype=numpy.float64) / 255
    if isinstance(photo, Tensor):
        photo = photo.detach().cpu()
        photo = photo[0] if photo.dim() == 4 and len(photo) == 1 else photo
        if photo.dim() == 3 and len(photo) in (1, 3):
            if photo.is_floating_point() and not (photo.min() >= 0 and photo.max() <= 1):
                return stretch_contrast(photo)
            photo = photo.permute(1, 2, 0)
        photo = photo.numpy()
    array = numpy.asarray(photo)
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3):
        raise InputError(
            f"a photo of shape {numpy.shape(photo)} was given: give one image, (height, width, 3) "
            "or a tensor (3, height, width)"
        )
    is_whole = numpy.issubdtype(array.dtype, numpy.integer)
    array = array.astype(numpy.float64) / (255 if is_whole else 1)
    if not (array.min() >= 0 and array.max() <= 1):
        raise InputError("a photo's values must be between 0 and 1, or whole numbers to 255")
    return numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def resized(values: Array, size: tuple[int, int]) -> Array:
    """Return a map, (height, width), at a photo's width and height, interpolated."""
    if values.shape == (size[1], size[0]):
        return values
    image = Image.fromarray(values.astype(numpy.float32))
    return numpy.asarray(image.resize(size, Image.Resampling.BILINEAR), dtype=numpy.float64)
