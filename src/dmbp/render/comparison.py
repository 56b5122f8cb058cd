"""Draw maps side by side, and how well each does in the insertion metric.

`draw_comparison` shows the map of each method (`dmbp compare`). `draw_sanity` shows each method's
map of the model and of a copy whose last layer is random (`dmbp sanity`).

In the insertion metric a map's strongest pixels are put into a blurred photo; the better the map,
the sooner the class's probability rises. `draw_insertion` shows the curves of several methods below
photos that fill up, `insertion_gif` the photo and the curve of one map as they grow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap

import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from dmbp.display import draw_names_literally
from dmbp.render.colour import CURVES, GRID, INK, MARKER, OTHER_CURVES, Array
from dmbp.render.panel import (
    NOTE_LINE,
    PanelStyle,
    draw_legend,
    show_image,
    write_note,
)
from dmbp.render.pictures import Picture
from dmbp.render.titles import TITLE_LINE_HEIGHT, title_height

COLUMN = 0.88
"""The width of a picture, in those of a panel."""


@dataclass(frozen=True)
class ComparedMap:
    """A method's map (height, width), its insertion curve and score, and the seconds it took.

    `is_control` marks an order of pixels that has nothing to do with the photo.
    """

    title: str
    attribution: Array
    curve: Sequence[float]
    score: float
    seconds: float
    is_control: bool = False

    @property
    def name(self) -> str:
        """The title, with a word that says if this is not a method but what it must beat."""
        return f"{self.title} (control)" if self.is_control else self.title

    @property
    def is_blank(self) -> bool:
        """Whether the map is the same everywhere, so that its pixels were inserted row by row."""
        return is_uniform(self.attribution)


@dataclass(frozen=True)
class InsertedPhoto:
    """A blurred photo with a map's strongest pixels put in, and the value of its curve."""

    photo: Array
    value: float


@dataclass(frozen=True)
class CurveSubject:
    """What insertion curves follow: a target's probability, or its score if it has none.

    >>> CurveSubject("cat").words, CurveSubject("cat").number(0.98)
    ('probability of cat', '98%')
    >>> CurveSubject("value 3", in_percent=False).words
    'score of value 3'
    """

    name: str
    in_percent: bool = True

    @property
    def words(self) -> str:
        """What the curve shows."""
        return f"{'probability' if self.in_percent else 'score'} of {self.name}"

    @property
    def title(self) -> str:
        """The same for the beginning of a sentence, such as `Probability of “cat”`."""
        return f"{'Probability' if self.in_percent else 'Score'} of “{self.name}”"

    def number(self, value: float) -> str:
        """Return a value of the curve as text."""
        return f"{value:.0%}" if self.in_percent else f"{value:.3g}"

    def limits(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the ends of the vertical axis for these values."""
        if self.in_percent:
            return 0, 1.02
        low, high = min(values), max(values)
        margin = 0.05 * (high - low) or 1.0
        return low - margin, high + margin


COLUMNS = 5
INSERTION_MEANING = (
    "insertion: how soon the class returns when each map's strongest pixels are put into the "
    "blurred photo first; 1 is best"
)
HEADING_LETTERS = 34
"""How many letters of a heading fit into the width of a picture."""

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
    photo: Array,
    caption: str,
    maps: Sequence[ComparedMap],
    target: str,
    style: PanelStyle | None = None,
) -> Figure:
    """Draw the photo, and every map over it, each on its own scale, best insertion score first.

    `target` says what the maps explain.
    """
    style = style or PanelStyle()
    columns = min(COLUMNS, len(maps) + 1)
    rows = math.ceil((len(maps) + 1) / columns)
    # The other titles have two lines, for which there is room.
    above = max(0.0, title_height(caption, pictures=COLUMN) - TITLE_LINE_HEIGHT)
    width = style.row_height * columns * 0.82
    said = (f"for and against: {target}", INSERTION_MEANING)
    heading = "\n".join(line for text in said for line in wrap(text, HEADING_LETTERS * columns))
    above += NOTE_LINE * (heading.count("\n") + 1) + 0.1
    size = width, style.row_height * rows * 0.98 + 0.5 + above
    figure = Picture(figsize=size, layout="constrained")
    figure.suptitle(heading, fontsize=11, x=0.005, ha="left")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [0.035])
    show_image(figure.add_subplot(grid[0, 0]), photo, caption, pictures=COLUMN)
    ranked = sorted(maps, key=lambda item: -item.score)
    for place, item in enumerate(ranked, start=1):
        shown = style.evidence_image(shift_to_zero(item.attribution), photo)
        axis = figure.add_subplot(grid[place // columns, place % columns])
        what = "blank, row by row" if item.is_blank else "insertion"
        title = f"{item.name}\n{what} {item.score:.2f} · {format_duration(item.seconds)}"
        show_image(axis, shown, title, pictures=COLUMN)
    draw_legend(figure, figure.add_subplot(grid[-1, 0]), style.palette)
    if columns > 1:
        write_note(
            figure.add_subplot(grid[-1, 1]),
            "sorted by insertion score; each map on its own colour scale",
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
    size = height * 4.5, height * len(rows) + 1.1 + title_height(caption, pictures=COLUMN)
    figure = Picture(figsize=size, layout="constrained")
    grid = figure.add_gridspec(
        len(rows) + 1, 4, width_ratios=[1, 1, 1, 1.4], height_ratios=[1.0] * len(rows) + [0.04]
    )
    show_image(figure.add_subplot(grid[0, 0]), photo, caption, pictures=COLUMN)
    for line, row in enumerate(rows):
        titles = SANITY_TITLES if line == 0 else ("", "")
        for column, (title, attribution) in enumerate(
            zip(titles, (row.before, row.after), strict=True), start=1
        ):
            axis = figure.add_subplot(grid[line, column])
            show_image(axis, style.evidence_image(shift_to_zero(attribution), photo), title)
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


def draw_insertion(
    strips: Mapping[str, Mapping[float, InsertedPhoto]],
    maps: Sequence[ComparedMap],
    curve: CurveSubject,
) -> Figure:
    """Draw the curves of all methods below strips of photos.

    `strips` holds, by the titles of a few methods, the photo at some fractions of inserted pixels,
    and `curve` says what the curves follow.
    """
    fractions = list(next(iter(strips.values())))
    names = {item.title: item.name for item in maps}
    height = STRIP_HEIGHT * len(strips) + 3.7
    figure = Picture(figsize=(1.75 * len(fractions) + 1.0, height), layout="constrained")
    figure.suptitle(INSERTION_MEANING, fontsize=11)
    grid = figure.add_gridspec(
        len(strips) + 1, len(fractions), height_ratios=[STRIP_HEIGHT] * len(strips) + [3.4]
    )
    colours = dict(zip(strips, CURVES, strict=False))
    for line, (title, strip) in enumerate(strips.items()):
        for column, (fraction, inserted) in enumerate(strip.items()):
            axis = figure.add_subplot(grid[line, column])
            above = f"{fraction:.0%} put in" if line == 0 else ""
            show_image(axis, numpy.clip(inserted.photo, 0, 1), above)
            name = f"{curve.name} " if len(curve.name) <= LONGEST_STRIP_NAME else ""
            axis.set_xlabel(f"{name}{curve.number(inserted.value)}", fontsize=10)
            if column == 0:
                name = names[title].replace(" (", "\n(")
                axis.set_ylabel(name, color=colours[title], fontsize=10, fontweight="bold")
    axis = figure.add_subplot(grid[-1, :])
    _draw_curves(axis, maps, colours, strips)
    for fraction in fractions:
        axis.axvline(fraction, color=GRID, linewidth=0.8, zorder=0)
    axis.set_ylabel(curve.words)
    axis.set_ylim(*curve.limits([value for item in maps for value in item.curve]))
    return figure


STRIP_HEIGHT = 1.9
"""The height of a strip of photos, in inches."""

LONGEST_STRIP_NAME = 14
"""The most letters of a name that fit below a photo of a strip, beside a number."""


def _draw_curves(
    axis: Axes,
    maps: Sequence[ComparedMap],
    colours: Mapping[str, str],
    strips: Mapping[str, Mapping[float, InsertedPhoto]],
) -> None:
    """Draw all curves, in colour and with a legend those of the methods that have strips.

    These go through the strips' photos, too, so that both show the same values.
    """
    lines: dict[str, Line2D] = {}
    for item in sorted(maps, key=lambda item: item.title in colours):  # those in colour on top
        points = dict(zip(numpy.linspace(0, 1, len(item.curve)), item.curve, strict=True))
        has_strip = item.title in colours
        photos = {k: photo.value for k, photo in strips.get(item.title, {}).items()}
        if photos:
            axis.plot(list(photos), list(photos.values()), "o", color=colours[item.title], ms=4)
        (lines[item.title],) = axis.plot(
            *zip(*sorted((points | photos).items()), strict=True),
            color=colours.get(item.title, OTHER_CURVES),
            linewidth=2.2 if has_strip else 1.0,
            label=f"{item.name}  {item.score:.2f}" if has_strip else None,
        )
    axis.set_xlim(0, 1)
    axis.set_xlabel("part of the pixels put into the blurred photo, strongest first")
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25 %", "50 %", "75 %", "all"])
    axis.spines[["top", "right"]].set_visible(False)
    has_others = len(maps) > len(colours)
    axis.legend(
        handles=[lines[title] for title in colours],  # in the order of the photos above
        title="insertion: the area under the curve"
        + ("\n(grey: the other methods)" if has_others else ""),
        frameon=False,
        fontsize=10,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),  # beside the curves, so that none is covered
        alignment="left",
    )


FRAME_MILLISECONDS = 120
LAST_FRAME_MILLISECONDS = 1500


def insertion_gif(frames: Sequence[Array], values: Sequence[float], curve: CurveSubject) -> bytes:
    """Return a GIF with a frame for every step: the photo so far (RGB in [0, 1]) and the curve."""
    pictures = [_draw_frame(frame, values, k, curve) for k, frame in enumerate(frames)]
    durations = [FRAME_MILLISECONDS] * (len(pictures) - 1) + [LAST_FRAME_MILLISECONDS]
    buffer = BytesIO()
    pictures[0].save(
        buffer, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0
    )
    return buffer.getvalue()


def _draw_frame(
    photo: Array, values: Sequence[float], step: int, curve: CurveSubject
) -> Image.Image:
    last, so_far = len(values) - 1, values[: step + 1]
    figure = Picture(figsize=(7.2, 3.6), dpi=80, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(numpy.clip(photo, 0, 1))
    left.set_axis_off()
    left.set_title(f"{step / last:.0%} of the pixels put in", fontsize=10)
    fractions = numpy.linspace(0, 1, len(values))[: step + 1]
    right.plot(fractions, so_far, color=INK)
    right.plot(fractions[-1:], so_far[-1:], "o", color=MARKER)
    right.set(xlim=(-0.02, 1.02), ylim=curve.limits(values), xlabel="fraction of pixels")
    right.set_title(f"{curve.words}: {curve.number(so_far[-1])}", fontsize=10)
    right.spines[["top", "right"]].set_visible(False)
    draw_names_literally(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(numpy.asarray(canvas.buffer_rgba())).convert("RGB")
