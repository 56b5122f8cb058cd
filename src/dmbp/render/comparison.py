"""Several methods on one photo, side by side.

Maps before and after the model forgot its last layer, side by side.
"""

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


@dataclass(frozen=True)
class SanityRow:
    """A method's maps (height, width) before and after, and the correlation in every draw.

    Several last layers are drawn; `after` is the map of the middle one.
    """

    title: str
    before: Array
    after: Array
    correlations: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean correlation, without signs: a map that turns into its opposite stays, too."""
        return sum(map(abs, self.correlations)) / len(self.correlations)

    @property
    def verdict(self) -> str:
        """What the correlations say, in words."""
        if is_even(self.before) or is_even(self.after):
            return "nothing to compare: a map is the same everywhere"
        if self.mean > 0.7:
            return "stays: it does not depend on what was learned"
        return "changes: it depends on what was learned" if self.mean < 0.3 else "changes in part"


def draw_sanity(
    photo: Array,
    caption: str,
    rows: Sequence[SanityRow],
    style: PanelStyle | None = None,
) -> Figure:
    """A row for every method: before, after, and the correlation in words."""
    style = style or PanelStyle()
    height = style.row_height * 0.8
    size = height * 4.5, height * len(rows) + 1.1 + head_room(caption)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        len(rows) + 1, 4, width_ratios=[1, 1, 1, 1.4], height_ratios=[1.0] * len(rows) + [0.04]
    )
    show_image(figure.add_subplot(grid[0, 0]), photo, caption)
    for line, row in enumerate(rows):
        for column, picture in enumerate((row.before, row.after), start=1):
            (smoothed,), scale = style.smoothed([from_nothing(picture)])
            title = ("the model as it is", "its last layer drawn afresh")[column - 1]
            axis = figure.add_subplot(grid[line, column])
            show_image(axis, style.evidence(smoothed, photo, scale), title if line == 0 else "")
            if column == 1:
                axis.set_ylabel(row.title, fontsize=11)
        words = figure.add_subplot(grid[line, 3])
        words.set_axis_off()
        words.text(0, 0.64, f"|ρ| = {row.mean:.2f}", fontsize=15, fontweight="bold")
        if len(row.correlations) > 1:
            between = f"ρ {min(row.correlations):+.2f} to {max(row.correlations):+.2f}"
            words.text(0, 0.54, f"{between} in {len(row.correlations)} draws", fontsize=10)
        words.text(0, 0.46, row.verdict.replace(": ", ":\n"), fontsize=10.5, va="top")
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    write_note(
        figure.add_subplot(grid[-1, 2]),
        "ρ: rank correlation; |ρ|: mean without signs; each map on its own colour scale",
    )
    return figure
