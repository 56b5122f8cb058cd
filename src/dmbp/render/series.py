"""Draw charts for inputs that are not images.

A signal (channels, length) gets a line for each channel over spans whose colour is the evidence of
each moment; a long one is drawn as an envelope. A vector of features gets a bar for each of the
strongest, as long as what it adds to the score. Below
them, a sentence says what the model's score becomes without the strongest of each colour. Bars of
the score's terms stand beside charts whose colours were not tested, or if the style asks for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from dmbp.decompose.details import gaussian
from dmbp.render.colour import (
    AXIS,
    EVIDENCE_PERCENTILE,
    SIGNAL,
    Array,
    Palette,
    darkest_magnitude,
)
from dmbp.render.colour_test import SIGNAL_WORDS, VECTOR_WORDS, ColourTest, InputWords
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
from dmbp.render.pictures import Picture

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

    @property
    def words(self) -> InputWords:
        """The words of sentences about the input."""
        return SIGNAL_WORDS if self.values.ndim > 1 else VECTOR_WORDS


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
    rows: Sequence[SeriesRow],
    chart: Chart,
    *,
    height: float,
    style: PanelStyle | None = None,
    with_sentences: bool = True,
) -> Figure:
    """Draw a chart, `height` inches high, for every row, each on its own colour scale."""
    style = style or PanelStyle()
    palette = style.palette
    shows_terms = style.terms or any(row.test is None for row in rows)
    widths = [CHART_WIDTH, TERMS_WIDTH]
    sentences = [_sentence(row, palette) if with_sentences else "" for row in rows]
    heights: list[float] = []
    for sentence in sentences:
        heights += [height, sentence_height(sentence) if sentence else 0.01]
    size = sum(widths), sum(heights) + 0.45  # inches for the legend
    figure = Picture(figsize=size, layout="constrained")
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
    width = CHART_WIDTH + TERMS_WIDTH
    return wrap_sentence(row.test.sentence(palette, row.words), width=width)


def pick_strongest(names: Sequence[str], strength: Array, *, most: int) -> tuple[list[int], str]:
    """Return the indices of the `most` strongest, ascending, and a note if others are left out."""
    order = sorted(range(len(names)), key=lambda k: -abs(float(strength[k])))
    left_out = len(names) - most
    note = f", the {most} strongest of {len(names)}" if left_out > 0 else ""
    return sorted(order[:most]), note


MAX_CHANNELS = 8
CHANNEL_HEIGHT = 1.5
"""In inches."""

LINE_WIDTH = 0.9
"""In points."""

MAX_COLUMNS = 1600
"""Longer signals are drawn as an envelope of so many columns, each from its least to its largest
value; a line of more moments than pixels would be a blot."""

SPAN_DEPTH = 0.7
"""How dark the strongest evidence is behind a line, as a share of the palette's darkest colour: the
line has to stay visible."""

SPAN_SMOOTHING = 0.004
"""How far evidence is smoothed along a signal, as a share of its length: single moments are too
narrow for the eye."""


def signal_height(row: SeriesRow) -> float:
    """Return a chart's height in inches, which is at least what the bars beside it need."""
    return max(2.6, CHANNEL_HEIGHT * min(len(row.values), MAX_CHANNELS))


def draw_signal(figure: Figure, cell: SubplotSpec, row: SeriesRow, scale: ColourScale) -> None:
    """Draw a line for each channel, one above the other; of many, the strongest ones.

    The colour behind a moment is its evidence; all channels have one scale.
    """
    strength = numpy.abs(row.attribution).sum(1)
    channels, note = pick_strongest(row.names, strength, most=MAX_CHANNELS)
    grid = cell.subgridspec(len(channels), 1)
    spans = smooth_spans(row.attribution)
    scale = ColourScale(scale.palette, darkest_magnitude(spans, percentile=EVIDENCE_PERCENTILE))
    axes = [figure.add_subplot(grid[line, 0]) for line in range(len(channels))]
    for line, (axis, channel) in enumerate(zip(axes, channels, strict=True)):
        _draw_channel(axis, row.values[channel], spans[channel], scale)
        axis.set_ylabel(row.names[channel], fontsize=9)
        axis.tick_params(labelsize=8, labelbottom=line == len(channels) - 1)
        if line == 0:
            axis.set_title(f"{row.caption}{note}", fontsize=11)
    axes[-1].set_xlabel("moment", fontsize=9)


def _draw_channel(axis: Axes, values: Array, spans: Array, scale: ColourScale) -> None:
    """Draw a line, or the envelope of a long one, over spans in the colours of its evidence."""
    low, high = float(values.min()), float(values.max())
    margin = 0.12 * (high - low) or 0.5
    limits = low - margin, high + margin
    length = len(values)
    strength = numpy.clip(_in_columns(spans, strongest_of) / scale.darkest, -1, 1)
    coloured = scale.colours(SPAN_DEPTH * strength * scale.darkest)[None]
    axis.imshow(
        coloured,
        extent=(-0.5, length - 0.5, *limits),
        aspect="auto",
        interpolation="nearest",
        zorder=0,
    )
    if length <= MAX_COLUMNS:
        axis.plot(numpy.arange(length), values, color=SIGNAL, linewidth=LINE_WIDTH)
    else:
        least, most = (_in_columns(values, join) for join in (numpy.amin, numpy.amax))
        places = (numpy.arange(MAX_COLUMNS) + 0.5) * length / MAX_COLUMNS
        axis.fill_between(places, least, most, color=SIGNAL, linewidth=LINE_WIDTH / 2)
    axis.set(xlim=(-0.5, length - 0.5), ylim=limits)
    axis.spines[["top", "right"]].set_visible(False)


def _in_columns(values: Array, join: Callable[[Array], float]) -> Array:
    """Return a signal's values, or those of `MAX_COLUMNS` columns if it is longer."""
    if len(values) <= MAX_COLUMNS:
        return values
    starts = numpy.arange(1, MAX_COLUMNS) * len(values) // MAX_COLUMNS
    return numpy.array([join(part) for part in numpy.split(values, starts)])


def strongest_of(values: Array) -> float:
    """Return the value of the largest magnitude."""
    return float(values[numpy.abs(values).argmax()])


def smooth_spans(attribution: Array) -> Array:
    """Smooth the evidence of each channel, (channels, length), along time for the eye."""
    lines = torch.from_numpy(numpy.ascontiguousarray(attribution))
    return gaussian(lines, [SPAN_SMOOTHING * lines.shape[1]]).numpy()


MAX_FEATURES = 20
FAINTEST_BAR = 1e-3
"""Of many features, those have no bar that have less than this share of the strongest one's."""

BAR_HEIGHT = 0.24
"""In inches."""


def features_height(row: SeriesRow) -> float:
    """Return a chart's height in inches, which is at least what the bars beside it need."""
    return max(2.6, 0.7 + BAR_HEIGHT * min(len(row.values), MAX_FEATURES))


def draw_features(figure: Figure, cell: SubplotSpec, row: SeriesRow, scale: ColourScale) -> None:
    """Draw a bar for each feature, the strongest first; of many, only these."""
    axis = figure.add_subplot(cell)
    strength = numpy.abs(row.attribution)
    felt = int((strength > FAINTEST_BAR * strength.max()).sum())
    most = MAX_FEATURES if len(strength) <= MAX_FEATURES else max(1, min(MAX_FEATURES, felt))
    features, note = pick_strongest(row.names, row.attribution, most=most)
    features.sort(key=lambda k: -float(strength[k]))
    lengths = [float(row.attribution[k]) for k in features]
    positive, negative = scale.palette.positive, scale.palette.negative
    colours = [positive if length > 0 else negative for length in lengths]
    axis.barh(range(len(features)), lengths, color=colours, height=0.65)
    axis.axvline(0, color=AXIS, linewidth=0.8)
    names = [f"{row.names[k]} = {row.values[k]:.3g}" for k in features]
    axis.set_yticks(range(len(features)), labels=names)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8)
    axis.tick_params(axis="y", labelsize=9, length=0)
    axis.set_xlabel("what it adds to the score", fontsize=9)
    axis.set_title(f"{row.caption}{note}", fontsize=11)
    axis.spines[["top", "right", "left"]].set_visible(False)


@dataclass(frozen=True)
class ChartKind:
    """How a kind of input is drawn: its chart, the chart's height, and the word for an entry."""

    chart: Chart
    height: Callable[[SeriesRow], float]
    entry: str


CHARTS = {
    1: ChartKind(draw_features, features_height, "feature"),
    2: ChartKind(draw_signal, signal_height, "channel"),
}
"""The charts by the number of an input's dimensions, without the batch."""


def draw_charts(
    rows: Sequence[SeriesRow], style: PanelStyle | None = None, *, with_sentences: bool = True
) -> Figure:
    """Draw rows of signals, or of vectors, one below the other, each above its sentences."""
    kind = CHARTS[rows[0].values.ndim]
    height = kind.height(rows[0])
    return draw_series(rows, kind.chart, height=height, style=style, with_sentences=with_sentences)
