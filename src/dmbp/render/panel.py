"""The panel: a row for each target, with the photo, the evidence and how the model confirms it.

A row shows the photo, the evidence over it, the photo without its strongest pixels of each colour
with the score it then gets, and a sentence that says so. `PanelStyle(terms=True)` adds the two
linear maps and bars of the score's terms; they are all there is if colours were not tested.

`draw_panel` makes the figure. The parts that other figures share (images with titles, bars of the
terms, legend, notes) and `PanelStyle`, which every figure takes, are defined here, too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

import numpy
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from dmbp.render.colour import (
    AXIS,
    EVIDENCE_PERCENTILE,
    FRAME,
    INK,
    RED_BLUE,
    Array,
    Palette,
    darkest_magnitude,
    linear_map_colours,
    signed_over_photo,
    smooth_evidence,
    smooth_map,
    veil_removed,
)
from dmbp.render.colour_test import ColourTest

TermValues = tuple[float, float, float, float]
"""The model's output, and its positive, negative and nuisance term."""


@dataclass(frozen=True)
class PanelRow:
    """One target of one photo.

    `photo`, `positive_map` and `negative_map` are (height, width, 3); `attribution` is
    (height, width), signed. `terms` is None for methods that do not split the score.

    If the model confirmed the colours, `test` says how, `removed` marks the pixels of each sign
    that were removed, positive first, (height, width), and `replaced` is the photo as it looks
    where they were.
    """

    photo: Array
    attribution: Array
    positive_map: Array
    negative_map: Array
    terms: TermValues | None
    photo_caption: str
    target_caption: str
    test: ColourTest | None = None
    removed: tuple[Array, Array] | None = None
    replaced: Array | None = None

    def photo_without(self, sign: Literal[1, -1]) -> Array | None:
        """Return the photo without the pixels of a sign; None if none were removed."""
        if self.test is None or self.test.without(sign) is None:
            return None
        assert self.removed is not None
        assert self.replaced is not None
        return veil_removed(self.photo, self.replaced, self.removed[sign < 0])


@dataclass(frozen=True)
class PanelStyle:
    """How pictures look.

    Args:
        smoothing: How far maps are smoothed, because single pixels are too fine for the eye: a
            Gaussian's sigma as a fraction of the map's longer side. Maps without fine detail are
            smoothed farther. It changes pictures only, not numbers.
        faint: How visible the photo is under the map, from 0 (white) to 1.
        palette: The colours of evidence for and against.
        row_height: The height of a row of pictures, in inches.
        terms: Whether the linear maps and the score's terms are drawn, too.
    """

    smoothing: float = 0.012
    faint: float = 0.45
    palette: Palette = RED_BLUE
    row_height: float = 3.3
    terms: bool = False

    def evidence_image(self, attribution: Array, photo: Array) -> Array:
        """Return a map drawn over its photo on its own scale, as RGB in [0, 1]."""
        smooth = smooth_evidence(attribution, self.smoothing * max(attribution.shape))
        scale = darkest_magnitude(smooth, percentile=EVIDENCE_PERCENTILE)
        return signed_over_photo(smooth, photo, scale=scale, faint=self.faint, palette=self.palette)


def term_bars(terms: TermValues, palette: Palette) -> list[tuple[str, float, str]]:
    """Return name, value and colour of each term, in the order they add up."""
    output, positive, negative, nuisance = terms
    return [
        ("for, y⁺", positive, palette.positive),
        ("against, y⁻", negative, palette.negative),
        ("neither, y~", nuisance, palette.neutral),
        ("sum: score y", output, INK),
    ]


def linear_map_pictures(row: PanelRow) -> tuple[Array, Array]:
    """Return pictures of the positive and the negative linear map, on one scale."""
    scale = darkest_magnitude(row.positive_map, row.negative_map)
    return (
        linear_map_colours(row.positive_map, scale=scale),
        linear_map_colours(row.negative_map, scale=scale),
    )


TITLE_WIDTH = 36
"""How many letters fit above a picture."""

TITLE_LINE_HEIGHT = 0.27
"""The height of a line of a title, in inches."""

TERMS_WIDTH = 1.15
"""The width of the bars, in widths of a picture."""


def format_number(value: float) -> str:
    """Format a number with its sign: `+2,386`, `-0.51`, but `0.00`."""
    if abs(value) < 0.005:
        return "0.00"
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.2f}"


SENTENCE_LETTERS = 11
"""How many letters of a sentence fit into an inch."""

SENTENCE_LINE = 0.3
"""The height of a line of a sentence, in inches."""


def draw_panel(rows: Sequence[PanelRow], style: PanelStyle | None = None) -> Figure:
    """Draw a row for every target, each on its own colour scale."""
    style = style or PanelStyle()
    if any(row.test is None for row in rows):
        return _draw_untested(rows, style)
    side = 0.91 * style.row_height  # the rest of a row is its title
    said = [row.test.sentence(style.palette) for row in rows if row.test is not None]
    sentences = [wrap_sentence(sentence, width=4 * side) for sentence in said]
    heights: list[float] = []
    for row, sentence in zip(rows, sentences, strict=True):
        picture = side * min(1.0, row.photo.shape[0] / row.photo.shape[1])
        heights += [picture, sentence_height(sentence)] + [picture] * style.terms
    pictures = len(rows) * (1 + style.terms)
    titles = 0.4 * pictures + sum(_titles_height(row, style) for row in rows)
    size = 4 * side, sum(heights) + titles + 0.55  # inches for the legend
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(heights) + 1, 4, height_ratios=[*heights, 0.1])
    line = 0
    for row, sentence in zip(rows, sentences, strict=True):
        _draw_tested_row(figure, grid, line, row, style)
        write_sentence(figure.add_subplot(grid[line + 1, :]), sentence)
        line += 2
        if style.terms:
            _draw_terms_row(figure, grid, line, row, style)
            line += 1
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    write_note(figure.add_subplot(grid[-1, 2]), _note(rows, style))
    return figure


def _draw_tested_row(
    figure: Figure, grid: GridSpec, line: int, row: PanelRow, style: PanelStyle
) -> None:
    """Draw photo, evidence, and the photo without the pixels of each colour."""
    axes = [figure.add_subplot(grid[line, column]) for column in range(4)]
    show_image(axes[0], row.photo, row.photo_caption)
    show_image(axes[1], style.evidence_image(row.attribution, row.photo), row.target_caption)
    test = row.test
    assert test is not None
    for axis, sign in zip(axes[2:], SIGNS, strict=True):
        photo = row.photo_without(sign)
        if photo is None:
            _write_absence(axis, row, sign, style)
            continue
        show_image(axis, photo, test.title(sign, style.palette))
        assert row.removed is not None
        colour = style.palette.positive if sign > 0 else style.palette.negative
        outline_removed(axis, row.removed[sign < 0], colour)


SIGNS: tuple[Literal[1], Literal[-1]] = (1, -1)

OUTLINE_SMOOTHING, OUTLINE_LEVEL = 0.02, 0.35
"""Removed pixels are often scattered: the outline is that of where they are dense."""


def outline_removed(axis: Axes, removed: Array, colour: str) -> None:
    """Draw a line around the removed pixels of a mask (height, width)."""
    sigma = OUTLINE_SMOOTHING * max(removed.shape)
    dense = smooth_map(removed, sigma) / smooth_map(numpy.ones(removed.shape), sigma)
    if dense.min() < OUTLINE_LEVEL < dense.max():
        axis.contour(dense, [OUTLINE_LEVEL], colors=[colour], linewidths=1.6)


def _write_absence(axis: Axes, row: PanelRow, sign: Literal[1, -1], style: PanelStyle) -> None:
    """Write in a picture's place that the map does not have a colour."""
    assert row.test is not None
    show_image(axis, numpy.full(row.photo.shape, 0.97), "")
    words, _, why = row.test.absence(sign, style.palette).rstrip(".").partition(": ")
    text = "\n".join([f"{words}:", *wrap(why, 20)])
    if text.count("\n") > 4:
        text = words
    axis.text(
        *(0.5, 0.5, text),
        transform=axis.transAxes,
        ha="center",
        va="center",
        fontsize=15,
        color=NEUTRAL_WORDS,
    )


NEUTRAL_WORDS = "#707070"


def _draw_terms_row(
    figure: Figure, grid: GridSpec, line: int, row: PanelRow, style: PanelStyle
) -> None:
    """Draw the linear maps and the bars of the terms below a row."""
    pictures = zip(linear_map_pictures(row), LINEAR_MAP_TITLES, strict=True)
    for column, (picture, title) in enumerate(pictures):
        show_image(figure.add_subplot(grid[line, column]), picture, title)
    if row.terms is not None:
        draw_terms(figure.add_subplot(grid[line, 2:]), row.terms, style.palette)


LINEAR_MAP_TITLES = "patterns for it, ∇F⁺", "patterns against it, ∇F⁻"


def _draw_untested(rows: Sequence[PanelRow], style: PanelStyle) -> Figure:
    """Draw photo, evidence, linear maps and terms of rows whose colours were not tested."""
    columns = [1.0, 1.0, 1.0, 1.0] + [TERMS_WIDTH] * any(row.terms is not None for row in rows)
    height = (
        style.row_height * len(rows)
        + 0.45  # inches for the legend
        + sum(title_height(row.photo_caption, row.target_caption) for row in rows)
    )
    # 0.91: pictures are about square, and the rest of a row's height is its title.
    size = style.row_height * 0.91 * sum(columns), height
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        len(rows) + 1,
        len(columns),
        width_ratios=columns,
        height_ratios=[1.0] * len(rows) + [0.03],
    )
    for line, row in enumerate(rows):
        pictures = (
            (row.photo, row.photo_caption),
            (style.evidence_image(row.attribution, row.photo), row.target_caption),
            *zip(linear_map_pictures(row), LINEAR_MAP_TITLES, strict=True),
        )
        for column, (picture, title) in enumerate(pictures):
            show_image(figure.add_subplot(grid[line, column]), picture, title)
        if row.terms is not None:
            draw_terms(figure.add_subplot(grid[line, 4]), row.terms, style.palette)
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    own = "; each row has its own colour scale" if len(rows) > 1 else ""
    write_note(figure.add_subplot(grid[-1, 2]), f"the model was not asked about these colours{own}")
    if len(columns) > 4:
        note = "their size says little: read the colours"
        write_note(figure.add_subplot(grid[-1, 4]), note)
    return figure


def _titles_height(row: PanelRow, style: PanelStyle) -> float:
    """Return the inches that a row's titles of more than one line need."""
    assert row.test is not None
    removed = [row.test.title(sign, style.palette) for sign in SIGNS]
    return title_height(row.photo_caption, row.target_caption, *removed)


def _note(rows: Sequence[PanelRow], style: PanelStyle) -> str:
    """Return what the outlined areas are."""
    by = rows[0].test.by if rows[0].test is not None else ""
    how = {"blur": "blurred", "mean": "set to the mean colour", "zero": "set to zero"}
    note = f"outlined: the strongest tenth of a colour, {how.get(by, 'replaced')} for the model"
    more = ["each row has its own colour scale"] * (len(rows) > 1)
    more += ["the terms' size says little"] * style.terms
    return "\n".join([note, *filter(None, ["; ".join(more)])])


def wrap_sentence(sentence: str, *, width: float) -> str:
    """Wrap a sentence to the width of a figure, in inches, in lines of about the same length."""
    most = round(SENTENCE_LETTERS * width)
    lines = math.ceil(len(sentence) / most)
    return "\n".join(wrap(sentence, min(most, round(1.15 * len(sentence) / lines) + 1)))


def sentence_height(sentence: str) -> float:
    """Return the inches that a wrapped sentence needs, with a gap below it."""
    return SENTENCE_LINE * (sentence.count("\n") + 1) + 0.15


def write_sentence(axis: Axes, sentence: str) -> None:
    """Write a wrapped sentence below a row."""
    axis.set_axis_off()
    text = axis.text(0.5, 1, sentence, ha="center", va="top", fontsize=12, linespacing=1.35)
    text.set_in_layout(False)


def wrap_title(title: str) -> str:
    """Wrap each line of a title to a picture's width; if it takes more than two, cut its middle."""
    lines: list[str] = []
    for line in title.split("\n"):
        wrapped = wrap(line, TITLE_WIDTH)
        if len(wrapped) > 2:
            wrapped = [wrapped[0], "…" + line[-TITLE_WIDTH + 1 :].lstrip(" ,;:")]
        lines += wrapped
    return "\n".join(lines)


def title_height(*titles: str) -> float:
    """Return the inches that titles of more than one line need above a row of pictures."""
    return TITLE_LINE_HEIGHT * max(wrap_title(title).count("\n") for title in titles)


def show_image(axis: Axes, picture: Array, title: str) -> None:
    """Show a picture without ticks under a title."""
    axis.imshow(picture, interpolation="nearest")
    axis.set_title(wrap_title(title), fontsize=11)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_edgecolor(FRAME)


def draw_terms(axis: Axes, terms: TermValues, palette: Palette) -> None:
    """Draw a bar for each term and for their sum."""
    names, values, colours = zip(*term_bars(terms, palette), strict=True)
    axis.barh(range(4), values, color=colours, height=0.55)
    axis.axvline(0, color=AXIS, linewidth=0.8)
    axis.invert_yaxis()
    axis.set_title("how the score adds up", fontsize=11)
    reach = max(map(abs, values)) or 1.0
    axis.set_xlim(-1.1 * reach, 1.1 * reach)
    axis.set_xticks([])
    axis.set_yticks([])
    # Name and number go on the side of the axis that the bar leaves free.
    for position, (name, value) in enumerate(zip(names, values, strict=True)):
        side = -1 if value > 0 else 1
        axis.text(
            side * 0.05 * reach,
            position,
            f"{name}\n{format_number(value)}",
            va="center",
            ha="right" if side < 0 else "left",
            fontsize=10,
        )
    axis.spines[["top", "right", "bottom", "left"]].set_visible(False)
    axis.set_box_aspect(1 / TERMS_WIDTH)  # as high as the pictures beside it


def draw_legend(figure: Figure, axis: Axes, palette: Palette) -> None:
    """Draw the legend of the colours."""
    colours = ScalarMappable(Normalize(-1, 1), palette.colormap)
    bar = figure.colorbar(colours, cax=axis, orientation="horizontal")
    bar.set_ticks([-1, 0, 1], labels=["against", "nothing", "for"])
    bar.ax.tick_params(length=0, labelsize=10)
    first, _, last = bar.ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    bar.outline.set_visible(False)


def write_note(axis: Axes, text: str) -> None:
    """Write a line of text beside the legend; it may extend under the next columns."""
    axis.set_axis_off()
    axis.text(0.02, 0.5, text, va="center", fontsize=10).set_in_layout(False)
