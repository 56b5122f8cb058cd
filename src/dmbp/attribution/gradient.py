"""Scores and gradients of a model at many points: what the path and sampling methods add up.

Grad: the gradient of the score, times the image. The paper's ablation calls it ND.

    a = ∇y ⊙ (x − reference)

Signed, unlike Captum's `Saliency`, which takes magnitudes. It is what autograd gives: a path that
the model detaches does not count here, nor in the methods that add gradients up; it does in
`dmbp.linearize(model, images).pullback()` and in the methods built on it.

    >>> Gradient(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Simonyan, Vedaldi and Zisserman, "Deep Inside Convolutional Networks", ICLR workshop 2014.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod, Question
from dmbp.errors import ModelError
from dmbp.linear import Linearizer, TargetRows


def scores(linearizer: Linearizer, points: Tensor, rows: TargetRows) -> Tensor:
    """The score of each row at its point (rows,); gradients pass."""
    found = rows.scores(linearizer.run(points))
    if torch.is_grad_enabled() and points.requires_grad and not found.requires_grad:
        raise ModelError(
            "the model passes no gradient to its input: does forward() run under "
            "torch.no_grad() or detach activations?"
        )
    return found


def gradients(linearizer: Linearizer, points: Tensor, rows: TargetRows) -> Tensor:
    """The gradient of each row's score in its point, by autograd through the model itself."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        return torch.autograd.grad(scores(linearizer, points, rows).sum(), points)[0]


def gradients_at_points(question: Question, points: Iterable[Tensor]) -> Iterator[Tensor]:
    """The gradients at several points of every row, run together as far as the batch allows.

    Each of `points` is shaped like the question's inputs; so are the gradients, in their order.
    """
    rows = len(question.rows)
    waiting = iter(points)
    while chunk := list(islice(waiting, max(1, question.batch // rows))):
        repeated = question.rows.pick(list(range(rows)) * len(chunk))
        yield from gradients(question.linearizer, torch.cat(chunk), repeated).split(rows)


class Gradient(LinearMapMethod):
    """The gradient of the score in the pixels."""

    def linear_map(self, question: Question) -> Tensor:
        """∇y of some rows."""
        return gradients(question.linearizer, question.inputs, question.rows)
