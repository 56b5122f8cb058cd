"""Gradient: the gradient of the score, times the image. The paper's ablation calls it ND.

    a = ∇y ⊙ (x − reference)

The map is signed, unlike that of Captum's `Saliency`, which takes magnitudes. The gradient is
autograd's: a path that the model detaches does not count here, nor in the methods that average
gradients over many points (`gradients_at_points`). It does count in
`dmbp.linearize(model, images).pullback()` and in the methods built on it.

    >>> Gradient(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Simonyan, Vedaldi and Zisserman, "Deep Inside Convolutional Networks", ICLR workshop 2014.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.errors import ModelError
from dmbp.linear import Question, TargetRows
from dmbp.linear.model.runner import ModelRunner


def scores(runner: ModelRunner, points: Tensor, rows: TargetRows) -> Tensor:
    """Return the score of each row at its point, (rows,), for autograd to differentiate.

    Raises:
        ModelError: If gradients are enabled, and the scores have no gradient.
    """
    result = rows.scores(runner.run(points))
    if torch.is_grad_enabled() and points.requires_grad and not result.requires_grad:
        raise ModelError(
            "the model passes no gradient to its input: does forward() run under "
            "torch.no_grad() or detach activations?"
        )
    return result


def gradients(runner: ModelRunner, points: Tensor, rows: TargetRows) -> Tensor:
    """Return the gradient of each row's score at its point, by autograd through the model."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        return torch.autograd.grad(scores(runner, points, rows).sum(), points)[0]


def gradients_at_points(question: Question, points: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the gradients at each of `points`, running as many points together as the batch allows.

    A point has a value for every row: it is shaped like the question's inputs, and so is its
    gradient.
    """
    rows = len(question.rows)
    remaining = iter(points)
    while chunk := list(islice(remaining, max(1, question.batch_size // rows))):
        repeated = question.rows.pick(list(range(rows)) * len(chunk))
        yield from gradients(question.runner, torch.cat(chunk), repeated).split(rows)


class Gradient(LinearMapMethod):
    """The gradient of the score with respect to the pixels.

    Args:
        model: The model to explain.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        generator: Not used by this method.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def linear_map(self, question: Question) -> Tensor:
        """Return ∇y for each row."""
        return gradients(question.runner, question.inputs, question.rows)
