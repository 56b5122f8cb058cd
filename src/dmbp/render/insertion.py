"""The insertion metric, as a figure or as a GIF.

A map's strongest pixels are put into a blurred photo; the better the map, the sooner the class's
probability rises. `draw_insertion` shows the curves of several methods below photos that fill up,
`insertion_gif` the photo and the curve of one map as they grow.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from dmbp.render.colour import CURVES, GRID, INK, MARKER, OTHER_CURVES, Array
from dmbp.render.comparison import ComparedMap
from dmbp.render.panel import show_image


def draw_insertion(
    strips: Mapping[str, Mapping[float, Array]], maps: Sequence[ComparedMap], target: str
) -> Figure:
    """Draw the curves of all methods below strips of photos.

    `strips` holds, by the titles of a few methods, the photo at some fractions of inserted pixels.
    """
    fractions = list(next(iter(strips.values())))
    height = 1.75 * len(strips) + 3.4
    figure = Figure(figsize=(1.75 * len(fractions) + 1.0, height), layout="constrained")
    grid = figure.add_gridspec(
        len(strips) + 1, len(fractions), height_ratios=[1.75] * len(strips) + [3.4]
    )
    colours = dict(zip(strips, CURVES, strict=False))
    for line, (title, strip) in enumerate(strips.items()):
        for column, (fraction, photo) in enumerate(strip.items()):
            axis = figure.add_subplot(grid[line, column])
            show_image(axis, numpy.clip(photo, 0, 1), f"{fraction:.0%}" if line == 0 else "")
            if column == 0:
                axis.set_ylabel(title, color=colours[title], fontsize=10, fontweight="bold")
    axis = figure.add_subplot(grid[-1, :])
    _draw_curves(axis, maps, colours)
    for fraction in fractions:
        axis.axvline(fraction, color=GRID, linewidth=0.8, zorder=0)
    axis.set_ylabel(f"probability of {target}")
    return figure


def _draw_curves(axis: Axes, maps: Sequence[ComparedMap], colours: Mapping[str, str]) -> None:
    """Draw all curves, in colour and with a legend those of the methods that have strips."""
    lines: dict[str, Line2D] = {}
    for item in sorted(maps, key=lambda item: item.title in colours):  # those in colour on top
        across = numpy.linspace(0, 1, len(item.curve))
        has_strip = item.title in colours
        (lines[item.title],) = axis.plot(
            across,
            item.curve,
            color=colours.get(item.title, OTHER_CURVES),
            linewidth=2.2 if has_strip else 1.0,
            label=f"{item.title}  {item.score:.2f}" if has_strip else None,
        )
    axis.set(xlim=(0, 1), ylim=(0, 1.02))
    axis.set_xlabel("part of the pixels put into the blurred photo, strongest first")
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25 %", "50 %", "75 %", "all"])
    axis.spines[["top", "right"]].set_visible(False)
    has_others = len(maps) > len(colours)
    axis.legend(
        handles=[lines[title] for title in colours],  # in the order of the photos above
        title="area under the curve" + ("\n(grey: the other methods)" if has_others else ""),
        frameon=False,
        fontsize=10,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),  # beside the curves, so that none is covered
        alignment="left",
    )


FRAME_MILLISECONDS = 120
LAST_FRAME_MILLISECONDS = 1500


def insertion_gif(frames: Sequence[Array], curve: Sequence[float], title: str) -> bytes:
    """Return a GIF with a frame for every step: the photo so far (RGB in [0, 1]) and the curve."""
    pictures = [
        _draw_frame(frame, curve[: k + 1], len(frames), title) for k, frame in enumerate(frames)
    ]
    durations = [FRAME_MILLISECONDS] * (len(pictures) - 1) + [LAST_FRAME_MILLISECONDS]
    buffer = BytesIO()
    pictures[0].save(
        buffer, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0
    )
    return buffer.getvalue()


def _draw_frame(photo: Array, so_far: Sequence[float], count: int, title: str) -> Image.Image:
    figure = Figure(figsize=(7.2, 3.6), dpi=80, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(numpy.clip(photo, 0, 1))
    left.set_axis_off()
    left.set_title(f"{(len(so_far) - 1) / (count - 1):.0%} of the pixels put in", fontsize=10)
    fractions = numpy.linspace(0, 1, count)[: len(so_far)]
    right.plot(fractions, so_far, color=INK)
    right.plot(fractions[-1:], so_far[-1:], "o", color=MARKER)
    right.set(xlim=(-0.02, 1.02), ylim=(0, 1.02), xlabel="fraction of pixels")
    right.set_title(f"probability of {title}: {so_far[-1]:.0%}", fontsize=10)
    right.spines[["top", "right"]].set_visible(False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(numpy.asarray(canvas.buffer_rgba())).convert("RGB")
