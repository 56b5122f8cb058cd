"""What is no image, explained: a chart of each row's numbers beside the score's terms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from dmbp.render.colour import Array, Palette, strongest
from dmbp.render.panel import PanelStyle, Terms, draw_legend, draw_terms

CHART_WIDTH, TERMS_WIDTH = 8.0, 3.4
"""In inches, whatever is drawn."""


@dataclass(frozen=True)
class SeriesRow:
    """One target of one input: its `values` and the signed `attribution` of each.

    Both are (channels, length) for signals and (features,) for vectors; `names` are those of the
    channels or features.
    """

    values: Array
    attribution: Array
    terms: Terms
    caption: str
    names: Sequence[str]


@dataclass(frozen=True)
class Scale:
    """Colours of a figure: the palette, and the magnitude that gets its darkest."""

    palette: Palette
    darkest: float


Chart = Callable[[Figure, SubplotSpec, SeriesRow, Scale], None]


def draw_series(
    rows: Sequence[SeriesRow], chart: Chart, *, height: float, style: PanelStyle | None = None
) -> Figure:
    """A figure with a chart of some `height` for every row, all on one colour scale."""
    palette = (style or PanelStyle()).palette
    scale = Scale(palette, strongest(*(row.attribution for row in rows)))
    widths = [CHART_WIDTH, TERMS_WIDTH]
    size = sum(widths), height * len(rows) + 0.45
    figure = Figure(figsize=size, layout="constrained")
    heights = [height] * len(rows) + [0.1]
    grid = figure.add_gridspec(len(rows) + 1, 2, width_ratios=widths, height_ratios=heights)
    for line, row in enumerate(rows):
        chart(figure, grid[line, 0], row, scale)
        draw_terms(figure.add_subplot(grid[line, 1]), row.terms, palette)
    draw_legend(figure, figure.add_subplot(grid[-1, 0]), palette)
    return figure


def shown(names: Sequence[str], strength: Array, *, most: int) -> tuple[list[int], str]:
    """The places of the `most` strongest, in their order, and what to say of those left out."""
    order = sorted(range(len(names)), key=lambda k: -abs(float(strength[k])))
    left_out = len(names) - most
    said = f", the {most} strongest of {len(names)}" if left_out > 0 else ""
    return sorted(order[:most]), said
