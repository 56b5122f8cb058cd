"""Draw a photo with the boxes that a detector finds in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from dmbp.render.colour import CURVES, REGION_HALO
from dmbp.render.panel import REGION_LINE, PanelStyle, show_image
from dmbp.render.pictures import Picture

WIDTH = 2.4
"""The width of the picture, in heights of a row of a panel."""

LARGEST_SIDE = 1600
"""Photos are drawn with at most so many pixels on a side."""


@dataclass(frozen=True)
class DrawnBox:
    """A box with its label; `corners` are left, top, right and bottom in the photo's pixels."""

    label: str
    corners: tuple[float, float, float, float]


def draw_boxes(
    photo: Image.Image, title: str, boxes: Sequence[DrawnBox], style: PanelStyle | None = None
) -> Figure:
    """Draw a photo with its boxes, each with a label at a corner."""
    style = style or PanelStyle()
    width = WIDTH * style.row_height
    figure = Picture(
        figsize=(width, width * photo.height / photo.width + 0.5), layout="constrained"
    )
    axis = figure.add_subplot()
    small = photo.copy()
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    show_image(axis, numpy.asarray(small) / 255, title, pictures=WIDTH)
    scale = small.width / photo.width
    for number, box in reversed(list(enumerate(boxes))):  # the strongest is drawn last, on top
        left, top, right, bottom = (side * scale - 0.5 for side in box.corners)
        colour = CURVES[number % len(CURVES)]
        for line, line_width in ((REGION_HALO, 2.6 * REGION_LINE), (colour, 1.6 * REGION_LINE)):
            axis.add_patch(
                Rectangle(
                    (left, top),
                    right - left,
                    bottom - top,
                    fill=False,
                    edgecolor=line,
                    linewidth=line_width,
                )
            )
        axis.text(
            max(left, 0),
            max(top, 0),
            box.label,
            color="white",
            fontsize=9,
            va="top" if top < 0.05 * small.height else "bottom",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.5},
        )
    axis.set(xlim=(-0.5, small.width - 0.5), ylim=(small.height - 0.5, -0.5))
    return figure
