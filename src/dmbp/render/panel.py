"""The panel: a row for each target, with photo, evidence, two linear maps and the score's terms.

`draw_panel` makes the figure. The parts that other figures share (images with titles, bars of the
terms, legend, notes) and `PanelStyle`, which every figure takes, are defined here, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from dmbp.render.colour import (
    AXIS,
    FRAME,
    INK,
    RED_BLUE,
    Array,
    Palette,
    darkest_magnitude,
    linear_map_colours,
    signed_over_photo,
    smooth_map,
)

TermValues = tuple[float, float, float, float]
"""The model's output, and its positive, negative and nuisance term."""


@dataclass(frozen=True)
class PanelRow:
    """One target of one photo.

    `photo`, `positive_map` and `negative_map` are (height, width, 3); `attribution` is
    (height, width), signed. `terms` is None for methods that do not split the score.
    """

    photo: Array
    attribution: Array
    positive_map: Array
    negative_map: Array
    terms: TermValues | None
    photo_caption: str
    target_caption: str


@dataclass(frozen=True)
class PanelStyle:
    """How pictures look.

    Args:
        smoothing: How far maps are smoothed, because single pixels are too fine for the eye: a
            Gaussian's sigma as a fraction of the map's longer side. It changes pictures only, not
            numbers.
        faint: How visible the photo is under the map, from 0 (white) to 1.
        palette: The colours of evidence for and against.
        row_height: The height of a row of pictures, in inches.
    """

    smoothing: float = 0.01
    faint: float = 0.45
    palette: Palette = RED_BLUE
    row_height: float = 3.3

    def smooth_maps(self, attributions: Sequence[Array]) -> tuple[list[Array], float]:
        """Return smoothed maps, and the magnitude that gets the darkest colour in all of them."""
        maps = [smooth_map(array, self.smoothing * max(array.shape)) for array in attributions]
        return maps, darkest_magnitude(*maps)

    def evidence_image(self, attribution: Array, photo: Array, scale: float) -> Array:
        """Return a smoothed map drawn over its photo, as RGB in [0, 1]."""
        return signed_over_photo(
            attribution, photo, scale=scale, faint=self.faint, palette=self.palette
        )


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


def draw_panel(rows: Sequence[PanelRow], style: PanelStyle | None = None) -> Figure:
    """Draw a row for every target, all on one colour scale."""
    style = style or PanelStyle()
    maps, scale = style.smooth_maps([row.attribution for row in rows])
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
    for line, (row, attribution) in enumerate(zip(rows, maps, strict=True)):
        photo, evidence, positive, negative = (
            figure.add_subplot(grid[line, column]) for column in range(4)
        )
        show_image(photo, row.photo, row.photo_caption)
        show_image(
            evidence, style.evidence_image(attribution, row.photo, scale), row.target_caption
        )
        positive_map, negative_map = linear_map_pictures(row)
        show_image(positive, positive_map, "patterns for it, ∇F⁺")
        show_image(negative, negative_map, "patterns against it, ∇F⁻")
        if row.terms is not None:
            draw_terms(figure.add_subplot(grid[line, 4]), row.terms, style.palette)
    draw_legend(figure, figure.add_subplot(grid[-1, 1]), style.palette)
    alone = "a part of a single object may speak against it, too"
    note = alone if len(rows) == 1 else "one colour scale for all rows"
    write_note(figure.add_subplot(grid[-1, 2]), note)
    if len(columns) > 4:
        note = "their size says little: read the colours"
        write_note(figure.add_subplot(grid[-1, 4]), note)
    return figure


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
    axis.text(0, 0.5, text, va="center", fontsize=10).set_in_layout(False)
