"""The evidence over the whole photo, at the photo's own size.

A model sees a part of a photo, scaled to a few hundred pixels. `spread_over_photo` brings a map
back to the photo's pixels, and `draw_whole_photo` draws it there. What the model did not see is
dark, and a line runs around what it saw.
"""

from collections.abc import Sequence

import numpy
from PIL import Image, ImageDraw

from dmbp.render.colour import INK, REGION_HALO, Array, signed_over_photo
from dmbp.render.panel import PanelStyle

Corners = tuple[float, float, float, float]
"""Left, top, right and bottom of what the model saw, in the photo's pixels."""

UNSEEN = 0.4
"""How bright the photo is where the model did not see it."""

ROWS_AT_ONCE = 256
"""Photos have up to 64 million pixels: they are coloured in strips of so many rows."""

LINE = 0.003
"""The width of lines, as a share of the photo's longer side."""


def spread_over_photo(values: Array, corners: Corners, size: tuple[int, int]) -> Array:
    """Return a map (height, width) interpolated at the pixels of a photo.

    Args:
        values: The map over what the model saw.
        corners: Which part of the photo that is.
        size: The photo's width and height.

    Returns:
        A float32 array of the photo's height and width, NaN where the model did not see it.
    """
    left, top, right, bottom = corners
    across, down = values.shape[1] / (right - left), values.shape[0] / (bottom - top)
    image = Image.fromarray(numpy.ascontiguousarray(values, dtype=numpy.float32))
    to_map = (across, 0, -left * across, 0, down, -top * down)
    spread = image.transform(size, Image.Transform.AFFINE, to_map, Image.Resampling.BILINEAR)
    result = numpy.array(spread)
    middles = [numpy.arange(length) + 0.5 for length in size]
    result[:, (middles[0] < left) | (middles[0] > right)] = numpy.nan
    result[(middles[1] < top) | (middles[1] > bottom)] = numpy.nan
    return result


def draw_whole_photo(
    photo: Image.Image,
    attribution: Array,
    corners: Corners,
    *,
    outlines: Sequence[Array] = (),
    style: PanelStyle | None = None,
) -> Image.Image:
    """Draw a signed map over the photo that it belongs to.

    Args:
        photo: The whole photo, in RGB.
        attribution: The map (height, width) over what the model saw.
        corners: Which part of the photo that is.
        outlines: Lines to draw, (points, 2) of x and y in the photo's pixels.
        style: As for panels.
    """
    style = style or PanelStyle()
    strength = spread_over_photo(style.evidence(attribution), corners, photo.size)
    result = numpy.empty((photo.height, photo.width, 3), dtype=numpy.uint8)
    for first in range(0, photo.height, ROWS_AT_ONCE):
        rows = slice(first, min(first + ROWS_AT_ONCE, photo.height))
        strip = numpy.asarray(photo.crop((0, rows.start, photo.width, rows.stop))) / 255
        seen = numpy.isfinite(strength[rows])
        drawn = signed_over_photo(
            numpy.nan_to_num(strength[rows]),
            strip,
            scale=1,
            faint=style.faint,
            palette=style.palette,
        )
        drawn = numpy.where(seen[..., None], drawn, UNSEEN * strip)
        result[rows] = numpy.round(255 * drawn)
    picture = Image.fromarray(result)
    width = max(1, round(LINE * max(photo.size)))
    pen = ImageDraw.Draw(picture)
    if numpy.isnan(strength).any():
        _draw_line(pen, _frame(corners, photo.size, inset=width), width)
    for points in outlines:
        _draw_line(pen, [(float(x), float(y)) for x, y in points], width)
    return picture


def _frame(corners: Corners, size: tuple[int, int], *, inset: float) -> list[tuple[float, float]]:
    """Return a line around what the model saw, so far inside that the photo's edge cuts none."""
    left, top = (max(side, inset) for side in corners[:2])
    right, bottom = (min(side, most - inset) for side, most in zip(corners[2:], size, strict=True))
    return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]


def _draw_line(pen: ImageDraw.ImageDraw, points: list[tuple[float, float]], width: int) -> None:
    """Draw a dark line on a light one that is twice as wide."""
    for colour, wide in ((REGION_HALO, 2 * width), (INK, width)):
        pen.line(points, fill=colour, width=wide, joint="curve")
