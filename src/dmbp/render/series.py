"""Draw charts for inputs that are not images.

A signal (channels, length) gets a line for each channel, on a band whose colour is the evidence of
each moment. A vector of features gets a bar for each, as long as what it adds to the score. Below
them, a sentence says what the model's score becomes without the strongest of each colour. Bars of
the score's terms stand beside charts whose colours were not tested, or if the style asks for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from dmbp.render.colour import AXIS, SIGNAL, Array, Palette, darkest_magnitude
from dmbp.render.colour_test import SIGNAL_WORDS, VECTOR_WORDS, ColourTest
from dmbp.render.panel import (
    PanelStyle,
    TermValues,
    draw_legend,
    draw_terms,
    sentence_height,
    wrap_sentence,
    write_note,
    write_sentence,
)

CHART_WIDTH, TERMS_WIDTH = 8.0, 3.4
"""Widths in inches, the same for all charts."""


@dataclass(frozen=True)
class SeriesRow:
    """One target of one input: its `values` and the signed `attribution` of each.

    Both are (channels, length) for signals and (features,) for vectors. `names` holds the names of
    the channels or features. `test` says how the model confirmed the colours, if it was asked.
    """

    values: Array
    attribution: Array
    terms: TermValues
    caption: str
    names: Sequence[str]
    test: ColourTest | None = None


@dataclass(frozen=True)
class ColourScale:
    """A figure's palette, and the magnitude that gets its darkest colour."""

    palette: Palette
    darkest: float

    def colours(self, attribution: Array) -> Array:
        """Return the colour of each value, RGBA in [0, 1]."""
        strength = numpy.clip(attribution / self.darkest, -1, 1)
        return self.palette.colormap(0.5 + 0.5 * strength)


Chart = Callable[[Figure, SubplotSpec, SeriesRow, ColourScale], None]


def draw_series(
    rows: Sequence[SeriesRow], chart: Chart, *, height: float, style: PanelStyle | None = None
) -> Figure:
    """Draw a chart, `height` inches high, for every row, each on its own colour scale."""
    style = style or PanelStyle()
    palette = style.palette
    shows_terms = style.terms or any(row.test is None for row in rows)
    widths = [CHART_WIDTH, TERMS_WIDTH]
    sentences = [_sentence(row, palette) for row in rows]
    heights: list[float] = []
    for sentence in sentences:
        heights += [height, sentence_height(sentence) if sentence else 0.01]
    size = sum(widths), sum(heights) + 0.45  # inches for the legend
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        len(heights) + 1, 2, width_ratios=widths, height_ratios=[*heights, 0.1]
    )
    for line, (row, sentence) in enumerate(zip(rows, sentences, strict=True)):
        scale = ColourScale(palette, darkest_magnitude(row.attribution))
        chart(figure, grid[2 * line, 0] if shows_terms else grid[2 * line, :], row, scale)
        if shows_terms:
            draw_terms(figure.add_subplot(grid[2 * line, 1]), row.terms, palette)
        write_sentence(figure.add_subplot(grid[2 * line + 1, :]), sentence)
    draw_legend(figure, figure.add_subplot(grid[-1, 0]), palette)
    if len(rows) > 1:
        write_note(figure.add_subplot(grid[-1, 1]), "each row has its own colour scale")
    return figure


def _sentence(row: SeriesRow, palette: Palette) -> str:
    if row.test is None:
        return ""
    words = SIGNAL_WORDS if row.values.ndim > 1 else VECTOR_WORDS
    width = CHART_WIDTH + TERMS_WIDTH
    return wrap_sentence(row.test.sentence(palette, words), width=width)


def pick_strongest(names: Sequence[str], strength: Array, *, most: int) -> tuple[list[int], str]:
    """Return the indices of the `most` strongest, ascending, and a note if others are left out."""
    order = sorted(range(len(names)), key=lambda k: -abs(float(strength[k])))
    left_out = len(names) - most
    note = f", the {most} strongest of {len(names)}" if left_out > 0 else ""
    return sorted(order[:most]), note


MAX_CHANNELS = 8
CHANNEL_HEIGHT = 1.3
"""In inches."""

BAND_WIDTH, LINE_WIDTH = 7.0, 0.8
"""Widths in points. Colours are a band under a thin line, as a white line would be invisible."""


def signal_height(row: SeriesRow) -> float:
    """Return a chart's height in inches, which is at least what the bars beside it need."""
    return max(2.6, CHANNEL_HEIGHT * min(len(row.values), MAX_CHANNELS))


def draw_signal(figure: Figure, cell: SubplotSpec, row: SeriesRow, scale: ColourScale) -> None:
    """Draw a line for each channel, one above the other; of many, the strongest ones."""
    strength = numpy.abs(row.attribution).sum(1)
    channels, note = pick_strongest(row.names, strength, most=MAX_CHANNELS)
    grid = cell.subgridspec(len(channels), 1)
    for line, channel in enumerate(channels):
        axis = figure.add_subplot(grid[line, 0])
        _draw_channel(axis, row.values[channel], row.attribution[channel], scale)
        axis.set_ylabel(row.names[channel], fontsize=9)
        axis.tick_params(labelsize=8, labelbottom=line == len(channels) - 1)
        if line == 0:
            axis.set_title(f"{row.caption}{note}", fontsize=11)


def _draw_channel(axis: Axes, values: Array, attribution: Array, scale: ColourScale) -> None:
    moments = numpy.arange(len(values))
    # A moment's colour reaches half-way to its neighbours.
    middle = (values[1:] + values[:-1]) / 2
    along = numpy.concatenate([moments[:1], moments[:-1] + 0.5, moments[-1:]])
    across = numpy.concatenate([values[:1], middle, values[-1:]])
    ends = numpy.stack([along, across], 1)
    at = numpy.stack([moments, values], 1)
    strokes = numpy.stack([ends[:-1], at, ends[1:]], 1)
    colours = scale.colours(attribution)
    axis.add_collection(LineCollection(list(strokes), colors=colours, linewidths=BAND_WIDTH))
    axis.plot(moments, values, color=SIGNAL, linewidth=LINE_WIDTH)
    axis.margins(x=0.01, y=0.15)
    axis.spines[["top", "right"]].set_visible(False)


MAX_FEATURES = 30
BAR_HEIGHT = 0.24
"""In inches."""


def features_height(row: SeriesRow) -> float:
    """Return a chart's height in inches, which is at least what the bars beside it need."""
    return max(2.6, 0.7 + BAR_HEIGHT * min(len(row.values), MAX_FEATURES))


def draw_features(figure: Figure, cell: SubplotSpec, row: SeriesRow, scale: ColourScale) -> None:
    """Draw a bar for each feature, in order; of many, the strongest ones."""
    axis = figure.add_subplot(cell)
    features, note = pick_strongest(row.names, row.attribution, most=MAX_FEATURES)
    lengths = [float(row.attribution[k]) for k in features]
    positive, negative = scale.palette.positive, scale.palette.negative
    colours = [positive if length > 0 else negative for length in lengths]
    axis.barh(range(len(features)), lengths, color=colours, height=0.65)
    axis.axvline(0, color=AXIS, linewidth=0.8)
    names = [f"{row.names[k]} = {row.values[k]:.3g}" for k in features]
    axis.set_yticks(range(len(features)), labels=names)
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)
    axis.set_xlabel("attribution", fontsize=9)
    axis.set_title(f"{row.caption}{note}", fontsize=11)
    axis.spines[["top", "right", "left"]].set_visible(False)
