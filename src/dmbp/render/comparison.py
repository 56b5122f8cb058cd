"""Maps side by side: of several methods (`dmbp compare`), or before and after (`dmbp sanity`).

`draw_comparison` shows the map of each method. `draw_sanity` shows each method's map of the model
and of a copy whose last layer is random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmbp.render.colour import Array
from dmbp.render.panel import LINE, PanelStyle, draw_legend, show_image, title_height, write_note


@dataclass(frozen=True)
class ComparedMap:
    """A method's map (height, width), its insertion curve and score, and the seconds it took."""

    title: str
    attribution: Array
    curve: Sequence[float]
    score: float
    seconds: float

    @property
    def is_blank(self) -> bool:
        """Whether the map is the same everywhere, so that its pixels were inserted row by row."""
        return is_uniform(self.attribution)


COLUMNS = 5
SANITY_TITLES = ("the model as it is", "its last layer drawn afresh")


def is_uniform(attribution: Array) -> bool:
    """Return whether a map is the same everywhere."""
    return bool(attribution.min() == attribution.max())


def shift_to_zero(attribution: Array) -> Array:
    """Shift a map without negative or zero values so that its weakest pixel is white.

    Such a map only says where the evidence is, not how much or which sign.
    """
    return attribution - attribution.min() if attribution.min() > 0 else attribution


def draw_comparison(
    photo: Array, caption: str, maps: Sequence[ComparedMap], style: PanelStyle | None = None
) -> Figure:
    """Draw the photo, and every map over it, each on its own scale, best insertion score first."""
    style = style or PanelStyle()
    columns = min(COLUMNS, len(maps) + 1)
    rows = math.ceil((len(maps) + 1) / columns)
    above = max(0.0, title_height(caption) - LINE)  # all titles have two lines at least
    size = style.row_height * columns * 0.82, style.row_height * rows * 0.98 + 0.5 + above
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [0.035])
    show_image(figure.add_subplot(grid[0, 0]), photo, caption)
    ranked = sorted(maps, key=lambda item: -item.score)
    for place, item in enumerate(ranked, start=1):
        (smoothed,), scale = style.smooth_maps([shift_to_zero(item.attribution)])
        axis = figure.add_subplot(grid[place // columns, place % columns])
        what = "blank, row by row" if item.is_blank else "insertion"
        title = f"{item.title}\n{what} {item.score:.2f} · {format_duration(item.seconds)}"
        show_image(axis, style.draw_evidence(smoothed, photo, scale), title)
    draw_legend(figure, figure.add_subplot(grid[-1, 0]), style.palette)
    if columns > 1:
        write_note(
            figure.add_subplot(grid[-1, 1]),
            "sorted by insertion score, higher is better; each map on its own colour scale",
        )
    return figure


def format_duration(seconds: float) -> str:
    """Format seconds: `12 s`, `0.34 s`."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


@dataclass(frozen=True)
class SanityRow:
    """A method's maps (height, width) before and after re-initialisation of the last layer.

    Several last layers are drawn, each with its rank correlation; `after` is the map of the one
    with the median correlation.
    """

    title: str
    before: Array
    after: Array
    correlations: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean magnitude of the correlations: a map that is only negated has not changed."""
        return sum(map(abs, self.correlations)) / len(self.correlations)

    @property
    def verdict(self) -> str:
        """What the correlations mean, in words."""
        if is_uniform(self.before) or is_uniform(self.after):
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
    """Draw a row for every method: its maps before and after, and the correlation in words."""
    style = style or PanelStyle()
    height = style.row_height * 0.8
    size = height * 4.5, height * len(rows) + 1.1 + title_height(caption)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        len(rows) + 1, 4, width_ratios=[1, 1, 1, 1.4], height_ratios=[1.0] * len(rows) + [0.04]
    )
    show_image(figure.add_subplot(grid[0, 0]), photo, caption)
    for line, row in enumerate(rows):
        titles = SANITY_TITLES if line == 0 else ("", "")
        for column, (title, attribution) in enumerate(
            zip(titles, (row.before, row.after), strict=True), start=1
        ):
            (smoothed,), scale = style.smooth_maps([shift_to_zero(attribution)])
            axis = figure.add_subplot(grid[line, column])
            show_image(axis, style.draw_evidence(smoothed, photo, scale), title)
            if column == 1:
                axis.set_ylabel(row.title, fontsize=11)
        _write_correlation(figure.add_subplot(grid[line, 3]), row)
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    write_note(
        figure.add_subplot(grid[-1, 2]),
        "ρ: rank correlation; |ρ|: mean without signs; each map on its own colour scale",
    )
    return figure


def _write_correlation(axis: Axes, row: SanityRow) -> None:
    """Write the mean correlation, its range over several draws, and the verdict."""
    axis.set_axis_off()
    axis.text(0, 0.64, f"|ρ| = {row.mean:.2f}", fontsize=15, fontweight="bold")
    if len(row.correlations) > 1:
        between = f"ρ {min(row.correlations):+.2f} to {max(row.correlations):+.2f}"
        axis.text(0, 0.54, f"{between} in {len(row.correlations)} draws", fontsize=10)
    axis.text(0, 0.46, row.verdict.replace(": ", ":\n"), fontsize=10.5, va="top")
