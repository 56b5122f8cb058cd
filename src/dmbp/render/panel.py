"""The panel: a row for each target, with the photo, the evidence and how the model confirms it.

A row shows the photo, the evidence over it, the photo without its strongest pixels of each colour
with the score it then gets, and a sentence that says so. If the map has no blue, the control takes
its place: the photo without the same pattern of pixels elsewhere. `PanelStyle(terms=True)` adds the
two linear maps and bars of the score's terms; they are all there is if colours were not tested.

`draw_panel` makes the figure. The parts that other figures share (images with titles, bars of the
terms, legend, notes) and `PanelStyle`, which every figure takes, are defined here, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec

from dmbp.render.colour import (
    AXIS,
    EVIDENCE_PERCENTILE,
    FRAME,
    INK,
    RED_BLUE,
    REGION_HALO,
    Array,
    Palette,
    darkest_magnitude,
    linear_map_colours,
    signed_over_photo,
    smooth_evidence,
    smooth_map,
    tint_changed,
)
from dmbp.render.colour_test import (
    INDEPENDENT_CLASSES,
    PHOTO,
    ColourTest,
    InputWords,
    Sign,
    score_meaning,
)
from dmbp.render.pictures import Picture
from dmbp.render.titles import TITLE_SIZE, title_height, wrap_title
from dmbp.render.volume import View

TermValues = tuple[float, float, float, float]
"""The model's output, and its positive, negative and nuisance term."""


@dataclass(frozen=True)
class PanelRow:
    """One target of one photo.

    `photo`, `positive_map` and `negative_map` are (height, width, 3); `attribution` is
    (height, width), signed. `terms` is None for methods that do not split the score.

    If the model was asked about the colours, `test` says what it said, `removed` marks the pixels
    that were removed, (height, width), by their sign, and `replaced` is the photo as it looks where
    they were. `region` marks where the target looks, (height, width), if it is a part of the photo.
    """

    photo: Array
    attribution: Array
    positive_map: Array
    negative_map: Array
    terms: TermValues | None
    photo_caption: str
    target_caption: str
    test: ColourTest | None = None
    removed: Mapping[Sign, Array] | None = None
    replaced: Array | None = None
    region: Array | None = None
    views: Sequence[View] = ()
    words: InputWords = PHOTO

    @property
    def region_lines(self) -> list[Array]:
        """Lines around the region, (points, 2) of columns and rows; none if there is no region."""
        if self.region is None or not self.region.any():
            return []
        return _contour(numpy.pad(self.region.astype(float), 1), 0.5, shift=-1)

    def changed_photos(self, palette: Palette) -> list[ChangedPhoto]:
        """Return the photo as the model was asked about it again, with each colour removed."""
        if self.test is None:
            return []
        assert self.removed is not None
        assert self.replaced is not None
        return [
            ChangedPhoto(
                tint_changed(self.photo, self.replaced, self.removed[sign], palette.tint(sign)),
                self.test.title(sign, palette, self.words),
                self._outlines(self.removed[sign]),
                {1: palette.positive, -1: palette.negative, 0: palette.neutral}[sign],
            )
            for sign in self.test.shown
        ]

    def _outlines(self, changed: Array) -> list[Array]:
        """Return lines around changed pixels, in each view by itself."""
        lines: list[Array] = []
        for view in self.views or [View("", 0, 0, *changed.shape)]:
            lines += [
                points + numpy.array([view.left, view.top]) for points in outline(view.cut(changed))
            ]
        return lines


@dataclass(frozen=True)
class ChangedPhoto:
    """A photo with its changed pixels tinted, its title, and lines around them, if they fit.

    Lines are arrays (points, 2) of columns and rows.
    """

    picture: Array
    title: str
    outlines: list[Array]
    colour: str


OUTLINE_SMOOTHING, OUTLINE_LEVEL = 0.02, 0.35
"""Changed pixels are often scattered: the outline is that of where they are dense."""

OUTLINED = 0.9
"""An outline has to enclose this share of the changed pixels; otherwise there is none."""


def outline(changed: Array) -> list[Array]:
    """Return lines around the pixels of a mask (height, width); none if many are scattered."""
    sigma = OUTLINE_SMOOTHING * max(changed.shape)
    dense = smooth_map(changed, sigma) / smooth_map(numpy.ones(changed.shape), sigma)
    enclosed = changed[dense >= OUTLINE_LEVEL].sum()
    if enclosed == 0 or enclosed < OUTLINED * changed.sum() or dense.min() >= OUTLINE_LEVEL:
        return []
    return _contour(dense, OUTLINE_LEVEL)


def _contour(values: Array, level: float, *, shift: float = 0) -> list[Array]:
    """Return lines at a level of values (height, width), moved by `shift`."""
    (path,) = Figure().add_subplot().contour(values, [level]).get_paths()
    return [numpy.asarray(points) + shift for points in path.to_polygons(closed_only=False)]


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

    def evidence(self, attribution: Array, views: Sequence[View] = ()) -> Array:
        """Return a map smoothed for the eye, on its own scale: 1 and -1 are the darkest colours.

        Each of its `views` is smoothed by itself.
        """
        smooth = numpy.zeros(attribution.shape)
        for view in views or [View("", 0, 0, *attribution.shape)]:
            part = view.cut(attribution)
            view.cut(smooth)[...] = smooth_evidence(part, self.smoothing * max(part.shape))
        return smooth / darkest_magnitude(smooth, percentile=EVIDENCE_PERCENTILE)

    def evidence_image(self, attribution: Array, photo: Array, views: Sequence[View] = ()) -> Array:
        """Return a map drawn over its photo on its own scale, as RGB in [0, 1]."""
        strength = self.evidence(attribution, views)
        return signed_over_photo(strength, photo, scale=1, faint=self.faint, palette=self.palette)


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


TERMS_WIDTH = 1.15
"""The width of the bars, in widths of a picture."""

LEAST_BARS = 1.8
"""The least height of the bars below a picture, in inches."""


def format_number(value: float) -> str:
    """Format a number with its sign: `+2,386`, `-0.51`, but `0.00`."""
    if abs(value) < 0.005:
        return "0.00"
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.2f}"


SENTENCE_LETTERS = 11
"""How many letters of a sentence fit into an inch."""

SENTENCE_LINE = 0.3
"""The height of a line of a sentence, in inches."""


def draw_panel(
    rows: Sequence[PanelRow], style: PanelStyle | None = None, *, independent: bool = False
) -> Figure:
    """Draw a row for every target, each on its own colour scale.

    `independent` says that several classes may be present, which the legend then explains.
    """
    style = style or PanelStyle()
    if any(row.test is None for row in rows):
        return _draw_untested(rows, style)
    side = 0.91 * style.row_height  # the rest of a row is its title
    changed = [row.changed_photos(style.palette) for row in rows]
    said = [row.test.sentence(style.palette, row.words) for row in rows if row.test is not None]
    sentences = [wrap_sentence(sentence, width=4 * side) for sentence in said]
    note = _note(rows, style, independent=independent)
    lines = _lines_of_pictures(rows)
    heights: list[float] = []
    titles = 0.0
    for row, photos, sentence in zip(rows, changed, sentences, strict=True):
        picture = side * min(1.0, row.photo.shape[0] / row.photo.shape[1])
        heights += [picture * lines] * lines + [sentence_height(sentence)]
        heights += [max(picture, LEAST_BARS)] * style.terms
        above = (row.photo_caption, row.target_caption, *(photo.title for photo in photos))
        titles += lines * (0.4 + title_height(*above, pictures=lines)) + 0.4 * style.terms
    legend = [0.1, NOTE_LINE * max(1, note.count("\n"))]
    size = 4 * side, sum(heights) + titles + sum(legend) + 0.3
    figure = Picture(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(heights) + 2, 4, height_ratios=[*heights, *legend])
    line = 0
    for row, photos, sentence in zip(rows, changed, sentences, strict=True):
        places = [
            grid[line + k * lines // 4, k * lines % 4 : k * lines % 4 + lines] for k in range(4)
        ]
        _draw_tested_row(figure, places, row, photos, style, lines=lines)
        write_sentence(figure.add_subplot(grid[line + lines, :]), sentence)
        line += lines + 1
        if style.terms:
            _draw_terms_row(figure, grid, line, row, style)
            line += 1
    draw_legend(figure, figure.add_subplot(grid[-2, 0]), style.palette)
    write_note(figure.add_subplot(grid[-2, 1]), note, from_top=True)
    return figure


STRIP = 2.5
"""Photos so many times wider than they are high, such as lines of text, have two pictures beside
each other, and other photos four."""


def _lines_of_pictures(rows: Sequence[PanelRow]) -> int:
    """Return in how many lines the pictures of a row stand."""
    return 2 if all(row.photo.shape[1] >= STRIP * row.photo.shape[0] for row in rows) else 1


NOTE_LINE = 0.19
"""The height of a line of a note, in inches."""


def _draw_tested_row(
    figure: Figure,
    places: Sequence[SubplotSpec],
    row: PanelRow,
    changed: Sequence[ChangedPhoto],
    style: PanelStyle,
    *,
    lines: int,
) -> None:
    """Draw photo, evidence, and the photo without the pixels of each colour."""
    axes = [figure.add_subplot(place) for place in places[: 2 + len(changed)]]
    show_image(axes[0], row.photo, row.photo_caption, pictures=lines)
    draw_region(axes[0], row)
    draw_evidence(axes[1], row, row.target_caption, style, pictures=lines)
    for axis, photo in zip(axes[2:], changed, strict=True):
        show_image(axis, photo.picture, photo.title, pictures=lines)
        for points in photo.outlines:
            axis.plot(*points.T, color=photo.colour, linewidth=1.6)
    for axis in (axes[0], *axes[2:]):
        label_views(axis, row.views)


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
    figure = Picture(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        len(rows) + 1,
        len(columns),
        width_ratios=columns,
        height_ratios=[1.0] * len(rows) + [0.03],
    )
    for line, row in enumerate(rows):
        pictures = (
            (row.photo, row.photo_caption),
            (style.evidence_image(row.attribution, row.photo, row.views), row.target_caption),
            *zip(linear_map_pictures(row), LINEAR_MAP_TITLES, strict=True),
        )
        for column, (picture, title) in enumerate(pictures):
            axis = figure.add_subplot(grid[line, column])
            show_image(axis, picture, title)
            if column < 2:
                draw_region(axis, row)
            label_views(axis, row.views)
        if row.terms is not None:
            draw_terms(figure.add_subplot(grid[line, 4]), row.terms, style.palette)
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    own = "; each row has its own colour scale" if len(rows) > 1 else ""
    write_note(figure.add_subplot(grid[-1, 2]), f"the model was not asked about these colours{own}")
    if len(columns) > 4:
        note = "their size says little: read the colours"
        write_note(figure.add_subplot(grid[-1, 4]), note)
    return figure


def _note(rows: Sequence[PanelRow], style: PanelStyle, *, independent: bool) -> str:
    """Return what is tinted, and the meaning of words that the picture uses."""
    tests = [row.test for row in rows if row.test is not None]
    lines = [tint_note(tests, rows[0].words)] if any(test.shown for test in tests) else []
    more = ["each row has its own colour scale"] * (len(rows) > 1)
    more += ["the terms' size says little"] * style.terms
    lines += ["; ".join(more)] if more else []
    with_scores = [test for test in tests if test.shows_scores]
    lines += [score_meaning(with_scores)] if with_scores else []
    in_percent = any(test.whole.probability is not None for test in tests)
    lines += [INDEPENDENT_CLASSES] if independent and in_percent else []
    lines += [REGION_NOTE] if any(row.region_lines for row in rows) else []
    return "\n".join(lines)


def tint_note(tests: Sequence[ColourTest], words: InputWords = PHOTO) -> str:
    """Return what the tinted pixels are, and what the model saw in their place."""
    how = {"blur": "blurred", "mean": "set to the mean colour", "zero": "set to zero"}
    seen = how.get(tests[0].by, "replaced")
    is_few = any(test.has_few(sign) for test in tests for sign in test.shown)
    what = f"{words.entries} marked strongest, at most a tenth"
    what = what if is_few else f"the tenth of the {words.whole} that is marked strongest"
    note = f"tinted: {what}, {seen} for the model"
    has_control = any(0 in test.shown for test in tests)
    return f"{note}; green: the control, as many {words.entries} elsewhere" if has_control else note


REGION_NOTE = "outlined in black: the part of the photo that the question is about"


def wrap_sentence(sentence: str, *, width: float) -> str:
    """Wrap sentences to the width of a figure, in inches.

    If they do not fit into one line, each begins on its own, in lines of about the same length.
    """
    most = round(SENTENCE_LETTERS * width)
    if len(sentence) <= most:
        return sentence
    lines: list[str] = []
    unbroken = sentence.replace(" → ", "\u00a0→\u00a0")  # no line ends inside a change
    for part in re.split(r"(?<=[.]) (?=[A-Z])", unbroken):
        count = math.ceil(len(part) / most)
        lines += wrap(part, min(most, round(1.15 * len(part) / count) + 1))
    return "\n".join(lines).replace("\u00a0", " ")


def sentence_height(sentence: str) -> float:
    """Return the inches that a wrapped sentence needs, with a gap below it."""
    return SENTENCE_LINE * (sentence.count("\n") + 1) + 0.15


def write_sentence(axis: Axes, sentence: str) -> None:
    """Write a wrapped sentence below a row."""
    axis.set_axis_off()
    text = axis.text(0.5, 1, sentence, ha="center", va="top", fontsize=12, linespacing=1.35)
    text.set_in_layout(False)


def show_image(axis: Axes, picture: Array, title: str, *, pictures: float = 1) -> None:
    """Show a picture without ticks under a title; `pictures` is as for `wrap_title`."""
    axis.imshow(picture, interpolation="nearest")
    axis.set_title(wrap_title(title, pictures=pictures), fontsize=TITLE_SIZE)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_edgecolor(FRAME)


def draw_evidence(
    axis: Axes, row: PanelRow, title: str, style: PanelStyle | None = None, *, pictures: float = 1
) -> None:
    """Draw a row's map over its photo, with a line around its region, under a title."""
    style = style or PanelStyle()
    evidence = style.evidence_image(row.attribution, row.photo, row.views)
    show_image(axis, evidence, title, pictures=pictures)
    label_views(axis, row.views)
    draw_region(axis, row)


def label_views(axis: Axes, views: Sequence[View]) -> None:
    """Write the label of each part of a picture into its corner."""
    if views:  # their frames would only box in the white space between them
        axis.spines[:].set_visible(False)
    for view in views:
        label = axis.text(
            view.left - 0.2,
            view.top - 0.2,
            view.label,
            va="top",
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.2},
        )
        label.set_in_layout(False)


REGION_LINE = 1.4
"""The width of the line around a region; it is dark on a light one that is twice as wide."""


def draw_region(axis: Axes, row: PanelRow) -> None:
    """Draw a line around the region that a row's target is about, if it has one."""
    for points in row.region_lines:
        for colour, width in ((REGION_HALO, 2 * REGION_LINE), (INK, REGION_LINE)):
            axis.plot(*points.T, color=colour, linewidth=width)
    if row.region is not None:  # lines on the border must not move the picture
        height, width = row.region.shape
        axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))


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


def write_note(axis: Axes, text: str, *, from_top: bool = False) -> None:
    """Write text beside the legend; it may extend under the next columns.

    It is centred, or begins at the legend's top and extends below it.
    """
    axis.set_axis_off()
    height, anchor = (1.0, "top") if from_top else (0.5, "center")
    axis.text(0.02, height, text, va=anchor, fontsize=10).set_in_layout(False)
