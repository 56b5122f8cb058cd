"""Runs a model on many changed images, for methods that ask it instead of taking gradients.

`run_of` finds the fastest way: a compiled forward pass if the model's graph has been captured
(`dmbp.engine.forward`), otherwise the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from dmbp.engine import ForwardPasses, run_padded
from dmbp.linear import Question

Run = Callable[[Tensor], Tensor]
"""Returns the outputs, (images, classes), for any number of images."""


def run_of(question: Question, passes: ForwardPasses) -> Run:
    """Return the fastest way to run the model of a question on any number of images.

    Args:
        question: The images, which tell the form of those that will be run.
        passes: Keeps compiled forward passes between questions.
    """
    runner = question.runner
    captured = question.linearizer.captured_graph(question.inputs)
    if captured is None:
        return runner.outputs
    if captured.batch is not None:
        return partial(run_padded, captured.batch, runner.outputs)
    return passes.find(captured, question.inputs, question.outputs) or runner.outputs


def rows_by_image(question: Question) -> list[list[int]]:
    """Return the rows of each image: an image with several targets is changed and run once."""
    rows_of: dict[int, list[int]] = {}
    for row, image in enumerate(question.rows.image):
        rows_of.setdefault(image, []).append(row)
    return list(rows_of.values())
