"""Draw a benchmark: for each task its insertion curves, and its scores against seconds per map.

A few methods have colours that colour-blind people can tell apart: DMBP and the best of the others.
The others are grey. In the second panel each method's name is placed beside its point so that it
covers as little as possible of other names, points and error bars; positions there are fractions of
the axes, from the lower left corner.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from dmbp.metric_table import METRICS, badness, curve_fractions
from dmbp.render.colour import Array
from dmbp.render.pictures import Picture

# Okabe and Ito's set, and the red of the other figures.
COLOURS = ("#c0212d", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9")
GREY, TEXT_GREY = "#bdbdbd", "#6f6f6f"
WIDTH, ROW_HEIGHT = 10.0, 3.7
_BETTER = {
    "high": "better to the top, ",
    "low": "better to the bottom, ",
    "zero": "better near zero, ",
}
"""Where better scores are."""

LINE_HEIGHT = 0.062
"""Height of a line of text, as a fraction of an axis."""

LETTER_WIDTH = 0.021
"""Width of a letter, as a fraction of an axis."""


@dataclass(frozen=True)
class MethodMark:
    """A method's mean score, its seconds per map and, if it has one, its mean curve.

    `error` and `curve_errors` are standard errors. `is_ours` marks DMBP and its variants.
    """

    label: str
    score: float
    error: float
    seconds: float
    curve: Sequence[float]
    curve_errors: Sequence[float]
    is_ours: bool = False


@dataclass(frozen=True)
class TaskPlot:
    """A task: its metric, its number of photos, and what each method scored."""

    name: str
    metric: str
    photos: int
    marks: Sequence[MethodMark]


def draw_benchmark(tasks: Sequence[TaskPlot]) -> Figure:
    """Draw a benchmark with a row for each task.

    Args:
        tasks: What to draw; a task whose methods have curves gets two panels, else one.

    Returns:
        The figure.
    """
    colours = method_colours(tasks)
    figure = Picture(figsize=(WIDTH, ROW_HEIGHT * len(tasks)), layout="constrained")
    rows: Any = figure.subfigures(len(tasks), 1, squeeze=False)
    for row, task in zip(rows[:, 0], tasks, strict=True):
        photos = "1 photo" if task.photos == 1 else f"{task.photos} photos"
        row.suptitle(f"{task.name}, {photos}", fontsize=12, fontweight="bold", x=0.01, ha="left")
        has_curves = any(mark.curve for mark in task.marks)
        axes = row.subplots(1, 2 if has_curves else 1, squeeze=False)[0]
        if has_curves:
            _draw_curves(axes[0], task, colours)
        _draw_seconds(axes[-1], task, colours)
    return figure


def method_colours(tasks: Sequence[TaskPlot]) -> dict[str, str]:
    """Return colours by label, the same in every task: ours first, then the best of the others."""
    scores: dict[tuple[bool, str], list[float]] = {}
    for task in tasks:
        for mark in task.marks:
            scores.setdefault((not mark.is_ours, mark.label), []).append(mark.score)
    order = sorted(scores, key=lambda key: (key[0], -sum(scores[key]) / len(scores[key])))
    return dict(zip([label for _, label in order], COLOURS, strict=False))


def _draw_curves(axis: Axes, task: TaskPlot, colours: Mapping[str, str]) -> None:
    for mark in sorted(task.marks, key=lambda mark: mark.label in colours):
        colour, curve = colours.get(mark.label, GREY), numpy.array(mark.curve)
        across = numpy.array(curve_fractions(task.metric, len(curve)))
        axis.plot(across, curve, color=colour, linewidth=2.2 if mark.label in colours else 1.0)
        if mark.label in colours:
            error = numpy.array(mark.curve_errors)
            low, high = curve - error, curve + error
            axis.fill_between(across, low, high, color=colour, alpha=0.13, linewidth=0)
    best = sorted(task.marks, key=lambda mark: badness(task.metric, mark.score) or 0.0)
    spec = METRICS[task.metric].curve
    assert spec is not None  # because there are curves
    area = "mean" if spec.at else "area under it"
    for line, mark in enumerate(best):
        text = f"{mark.score:.2f}  {mark.label}"
        axis.text(
            1.03, 0.97 - line * LINE_HEIGHT, text, va="top", transform=axis.transAxes, fontsize=9
        )
        axis.texts[-1].set_color(colours.get(mark.label, TEXT_GREY))
        axis.texts[-1].set_fontweight("bold" if mark.label in colours else "normal")
    axis.set(xlim=(0, 1), ylim=(0, None))
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25 %", "50 %", "75 %", "all"])
    axis.set_xlabel(spec.across)
    axis.set_ylabel("probability of the class")
    axis.set_title(f"{spec.title}, and the {area}; band: ±1 s.e.", fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_seconds(axis: Axes, task: TaskPlot, colours: Mapping[str, str]) -> None:
    axis.set_xscale("log")
    seconds = numpy.array([max(mark.seconds, 1e-6) for mark in task.marks])
    scores = numpy.array([mark.score for mark in task.marks])
    errors = numpy.array([mark.error for mark in task.marks])
    shown = [colours.get(mark.label, GREY) for mark in task.marks]
    axis.vlines(seconds, scores - errors, scores + errors, colors=shown, linewidth=1.2)
    axis.scatter(seconds, scores, color=shown, s=34, zorder=3)
    _set_limits(axis, seconds, scores, errors)
    _name_points(axis, task.marks, seconds, colours)
    axis.set_xlabel("seconds a map, on a logarithmic scale")
    axis.set_ylabel(METRICS[task.metric].axis)
    better = _BETTER.get(METRICS[task.metric].better or "", "")
    axis.set_title(f"Score and cost: {better}faster to the left", fontsize=10, loc="left")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.spines[["top", "right"]].set_visible(False)


def _set_limits(axis: Axes, seconds: Array, scores: Array, errors: Array) -> None:
    """Leave room for names on both sides, and for the error bars."""
    axis.set_xlim(seconds.min() / 2.5, seconds.max() * 2.5)
    low, high = (scores - errors).min(), (scores + errors).max()
    room = 0.08 * max(high - low, 0.02)
    axis.set_ylim(low - room, high + room)


def _name_points(
    axis: Axes, marks: Sequence[MethodMark], seconds: Array, colours: Mapping[str, str]
) -> None:
    """Write a name beside each point, with a thin line to it; coloured ones choose first."""
    left, right = numpy.log(axis.get_xlim())
    bottom, top = axis.get_ylim()

    def height(score: float) -> float:
        return float((score - bottom) / (top - bottom))

    order = sorted(range(len(marks)), key=lambda k: marks[k].label not in colours)
    points = [
        Point(
            float((numpy.log(seconds[k]) - left) / (right - left)),
            height(marks[k].score),
            height(marks[k].score - marks[k].error),
            height(marks[k].score + marks[k].error),
            LETTER_WIDTH * len(marks[k].label),
            LINE_HEIGHT,
        )
        for k in order
    ]
    halo = [withStroke(linewidth=2.5, foreground="white")]  # legible across error bars
    for k, (box, is_left) in zip(order, place_names(points), strict=True):
        label = marks[k].label
        axis.annotate(
            label,
            (seconds[k], marks[k].score),
            (box.right if is_left else box.left, (box.bottom + box.top) / 2),
            textcoords="axes fraction",
            ha="right" if is_left else "left",
            va="center",
            fontsize=9,
            fontweight="bold" if label in colours else "normal",
            color=colours.get(label, TEXT_GREY),
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkB": 3},
            path_effects=halo,
        )


NAME_DISTANCE = 0.03
"""Distance from a point to its name."""

OFFSETS = (0.0, 0.05, -0.05, 0.1, -0.1, 0.16, -0.16, 0.22, -0.22)
"""How far up or down a name may move, the nearest first."""


@dataclass(frozen=True)
class LabelBox:
    """A rectangle that a name, a point or an error bar is drawn in."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "LabelBox") -> float:
        """Return the area of the intersection."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)


@dataclass(frozen=True)
class Point:
    """A point, the ends of its error bar, and the size of its name."""

    x: float
    y: float
    low: float
    high: float
    width: float
    height: float

    def boxes(self) -> tuple[LabelBox, LabelBox]:
        """Return the rectangles of the dot and of the error bar."""
        dot = LabelBox(self.x - 0.012, self.y - 0.02, self.x + 0.012, self.y + 0.02)
        return dot, LabelBox(self.x - 0.004, self.low, self.x + 0.004, self.high)

    def name_boxes(self) -> Iterator[tuple[LabelBox, bool]]:
        """Yield boxes for the name, the nearest first, and whether each is left of the point."""
        for up, is_left in product(OFFSETS, (False, True)):
            left = self.x - NAME_DISTANCE - self.width if is_left else self.x + NAME_DISTANCE
            bottom = self.y + up - self.height / 2
            yield LabelBox(left, bottom, left + self.width, bottom + self.height), is_left


def place_names(points: Sequence[Point]) -> list[tuple[LabelBox, bool]]:
    """Return the box of each point's name, and whether it is left; earlier points choose first."""
    drawn = [box for point in points for box in point.boxes()]
    names: list[tuple[LabelBox, bool]] = []
    for point in points:
        best = min(point.name_boxes(), key=lambda name: _cost(name[0], point, drawn))
        drawn.append(best[0])
        names.append(best)
    return names


def _cost(name: LabelBox, point: Point, drawn: Sequence[LabelBox]) -> float:
    """Return how much a name covers, plus, with less weight, how far it is outside and away."""
    outside = max(0.0, -name.left) + max(0.0, name.right - 1.0)
    outside += max(0.0, -name.bottom) + max(0.0, name.top - 1.0)
    covered = sum(name.overlap(box) for box in drawn)
    away = abs((name.bottom + name.top) / 2 - point.y)
    return covered + 0.1 * outside + 0.002 * away
