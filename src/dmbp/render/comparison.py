"""Several methods on one photo, side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from dmbp.render.colour import Array
from dmbp.render.panel import LINE, PanelStyle, draw_legend, head_room, show_image, write_note


@dataclass(frozen=True)
class ComparedMap:
    """A method's map (height, width), its insertion curve and score, and what it took."""

    title: str
    attribution: Array
    curve: Sequence[float]
    score: float
    seconds: float

    @property
    def is_blank(self) -> bool:
        """Whether it is the same everywhere: its pixels are put in row by row, as they come."""
        return is_even(self.attribution)


COLUMNS = 5


def is_even(attribution: Array) -> bool:
    """Whether a map is the same everywhere."""
    return bool(attribution.min() == attribution.max())


def from_nothing(attribution: Array) -> Array:
    """A map as it is drawn: one without negatives says where, so its weakest place is nothing."""
    return attribution - attribution.min() if attribution.min() > 0 else attribution


def draw_comparison(
    photo: Array, caption: str, maps: Sequence[ComparedMap], style: PanelStyle | None = None
) -> Figure:
    """The photo and every map over it, each on its own scale, best insertion score first."""
    style = style or PanelStyle()
    columns = min(COLUMNS, len(maps) + 1)
    lines = math.ceil((len(maps) + 1) / columns)
    above = max(0.0, head_room(caption) - LINE)  # beyond two lines, which all titles have
    size = style.row_height * columns * 0.82, style.row_height * lines * 0.98 + 0.5 + above
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=[1.0] * lines + [0.035])
    show_image(figure.add_subplot(grid[0, 0]), photo, caption)
    best = sorted(maps, key=lambda item: -item.score)
    for place, item in enumerate(best, start=1):
        (smoothed,), scale = style.smoothed([from_nothing(item.attribution)])
        axis = figure.add_subplot(grid[place // columns, place % columns])
        what = "blank, row by row" if item.is_blank else "insertion"
        title = f"{item.title}\n{what} {item.score:.2f} · {duration(item.seconds)}"
        show_image(axis, style.evidence(smoothed, photo, scale), title)
    draw_legend(figure, figure.add_subplot(grid[-1, 0]), style.palette)
    if columns > 1:
        write_note(
            figure.add_subplot(grid[-1, 1]),
            "sorted by insertion score, higher is better; each map on its own colour scale",
        )
    return figure


def duration(seconds: float) -> str:
    """Seconds as a person writes them."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
