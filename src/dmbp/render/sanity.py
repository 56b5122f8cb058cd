"""Maps before and after the model forgot its last layer, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from dmbp.render.colour import Array
from dmbp.render.comparison import from_nothing
from dmbp.render.panel import PanelStyle, draw_legend, show_image


@dataclass(frozen=True)
class SanityRow:
    """A method's maps (height, width) before and after, and how well they correlate."""

    title: str
    before: Array
    after: Array
    correlation: float

    @property
    def verdict(self) -> str:
        """What the correlation says, in words."""
        size = abs(self.correlation)
        if size < 0.3:
            return "changes: it shows what was learned"
        return (
            "stays: it shows the photo, not what was learned" if size > 0.7 else "changes in part"
        )


def draw_sanity(
    photo: Array,
    caption: str,
    rows: Sequence[SanityRow],
    *,
    draws: int,
    style: PanelStyle | None = None,
) -> Figure:
    """A row for every method: before, after (the first of the draws), the correlation in words."""
    style = style or PanelStyle()
    height = style.row_height * 0.8
    figure = Figure(figsize=(height * 4.5, height * len(rows) + 0.9), layout="constrained")
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
        words.text(0, 0.6, f"ρ = {row.correlation:+.2f}", fontsize=15, fontweight="bold")
        words.text(0, 0.5, row.verdict.replace(": ", ":\n"), fontsize=10.5, va="top")
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    note = figure.add_subplot(grid[-1, 2])
    note.set_axis_off()
    about = f"ρ: rank correlation, mean of {draws} draws" if draws > 1 else "ρ: rank correlation"
    note.text(0, 0.5, f"{about}; each map on its own scale", va="center", fontsize=10)
    return figure
