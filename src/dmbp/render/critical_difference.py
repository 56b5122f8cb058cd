"""Draw critical differences: methods on a line of mean ranks, and bars over those that are equal.

A bar connects methods whose mean ranks differ by less than the critical difference, as in Demšar,
"Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006. The best rank is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmbp.render.pictures import Picture

BLACK, OURS, BAR = "#222222", "#c0212d", "#0072b2"
WIDTH, LINE = 10.0, 0.24
"""The picture's width, and the height of a line of it, in inches."""


@dataclass(frozen=True)
class RankPlot:
    """Mean ranks by label, the critical difference, and the labels that are ours."""

    title: str
    ranks: Mapping[str, float]
    critical: float
    ours: frozenset[str] = frozenset()


def draw_ranks(plots: Sequence[RankPlot]) -> Figure:
    """Draw a diagram for each ranking, one below the other."""
    heights = [2.2 + len(plot.ranks) / 2 + 0.6 * len(groups(plot)) for plot in plots]
    figure = Picture(figsize=(WIDTH, LINE * sum(heights)), layout="constrained")
    rows: Any = figure.subplots(len(plots), 1, squeeze=False, height_ratios=heights)
    for axis, plot, height in zip(rows[:, 0], plots, heights, strict=True):
        _draw(axis, plot, height)
    return figure


def groups(plot: RankPlot) -> list[tuple[float, float]]:
    """Return the ranks between which each bar lies: the largest sets of methods that are equal."""
    ranks = sorted(plot.ranks.values())
    found: list[tuple[float, float]] = []
    for start in ranks:
        end = max(rank for rank in ranks if rank - start <= plot.critical)
        if end > start and (not found or end > found[-1][1]):
            found.append((start, end))
    return found


def _draw(axis: Axes, plot: RankPlot, height: float) -> None:
    order = sorted(plot.ranks, key=lambda label: plot.ranks[label])
    count, bars = len(order), groups(plot)
    side = 0.4 * (count - 1) + 0.7
    axis.set(xlim=(1 - side, count + side), ylim=(-height + 2.0, 1.7))
    axis.set_axis_off()
    axis.set_title(plot.title, fontsize=10, loc="left")
    axis.hlines(0, 1, count, colors=BLACK, linewidth=1)
    for rank in range(1, count + 1):
        axis.vlines(rank, 0, 0.25, colors=BLACK, linewidth=1)
        axis.text(rank, 0.4, str(rank), ha="center", fontsize=7, color=BLACK)
    axis.hlines(1.3, 1, min(1 + plot.critical, count), colors=BAR, linewidth=2)
    axis.text(1 - 0.1, 1.3, f"critical difference {plot.critical:.2f}", ha="right", va="center",
              fontsize=8, color=BAR)  # fmt: skip
    for k, (start, end) in enumerate(bars):
        below = -0.35 - 0.3 * k
        axis.hlines(below, start - 0.05, end + 0.05, colors=BAR, linewidth=2.5)
    first = -0.9 - 0.3 * len(bars)
    half = (count + 1) // 2
    for k, label in enumerate(order):
        is_left = k < half
        line = first - (k if is_left else count - 1 - k)
        end = 1 - 0.1 if is_left else count + 0.1
        colour = OURS if label in plot.ours else BLACK
        rank = plot.ranks[label]
        axis.plot([rank, rank, end], [0, line, line], color=colour, linewidth=0.6)
        text = f"{label}  {rank:.2f}" if is_left else f"{rank:.2f}  {label}"
        axis.text(
            end - 0.1 if is_left else end + 0.1,
            line,
            text,
            ha="right" if is_left else "left",
            va="center",
            fontsize=8,
            color=colour,
            fontweight="bold" if label in plot.ours else "normal",
        )
