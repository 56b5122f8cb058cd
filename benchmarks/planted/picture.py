"""The picture of `--picture`: images with their shapes outlined, and the maps of each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.planted.images import render
from benchmarks.planted.questions import Question
from dmbp.render import PALETTES

PALETTE = PALETTES["red-blue"]


def draw_maps(questions: Sequence[Question], maps: Mapping[str, Tensor]) -> Figure:
    """Draw a row for each question: A outlined in red, B in blue, distractors in grey, then maps.

    Args:
        questions: The questions.
        maps: Each method's maps, (questions, height, width); each map has its own colour scale.
    """
    columns = 1 + len(maps)
    figure = Figure(figsize=(1.5 * columns, 1.6 * len(questions) + 0.2), layout="constrained")
    axes = figure.subplots(len(questions), columns, squeeze=False)
    for k, (row, question) in enumerate(zip(axes, questions, strict=True)):
        row[0].imshow(render(question.scene))
        _outline(row[0], question)
        row[0].set_title(f"class {question.target}", fontsize=8)
        for axis, (name, found) in zip(row[1:], maps.items(), strict=True):
            largest = float(found[k].abs().quantile(0.995)) or 1.0
            axis.imshow(found[k].numpy(), cmap=PALETTE.colormap, vmin=-largest, vmax=largest)
            _outline(axis, question)
            axis.set_title(name, fontsize=8)
        for axis in row:
            axis.set_axis_off()
    return figure


def _outline(axis: Axes, question: Question) -> None:
    for mask, colour in zip(
        question.masks(), (PALETTE.positive, PALETTE.negative, PALETTE.neutral), strict=True
    ):
        axis.contour(mask.numpy(), [0.5], colors=colour, linewidths=0.8)
