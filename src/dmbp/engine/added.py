"""What steps add to activations, for those where that is known.

    W h + b         a convolution, a product, a batch norm add something by channel
    h + h', cat …   others nothing, where all that they are given are activations

Nothing is known here of any other step: what depends on it goes another way.
"""

import torch
from torch import Tensor

from dmbp.engine.folding import BATCH_NORM, CONVOLUTION, scale_and_shift
from dmbp.engine.pooling import MAX_POOL
from dmbp.linear.piece import Piece
from dmbp.linear.step import Slot, Step

PRODUCT = "aten.linear.default"

ADDED = {CONVOLUTION: (2,), PRODUCT: (2,), BATCH_NORM: (2, 3)}
"""The places of arguments that are in the unit of activations: biases, and means taken off."""

LINEAR = {
    MAX_POOL,
    "aten.add.Tensor",
    "aten.cat.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.avg_pool2d.default",
    "aten.flatten.using_ints",
    "aten.mean.dim",
}
"""Operations that add nothing, where all that they are given are activations."""


def is_known(step: Step) -> bool:
    """Whether it is known what a step adds; a gate adds what its pieces do at zero."""
    if step.site is not None:
        return isinstance(step.function, Piece) and step.function.offset is None
    if step.keywords:
        return False
    if step.operation in ADDED:
        return len(step.reads) == 1 and isinstance(step.arguments[0], Slot)
    return step.operation in LINEAR and not _adds(step)


def share_of(step: Step, gradient: Tensor) -> Tensor | None:
    """What a known step adds to the scores of all rows, by their gradient in its result."""
    if step.operation not in ADDED:
        return None
    if step.operation == BATCH_NORM:
        added = scale_and_shift(step)[1]
    else:
        added = step.arguments[2] if len(step.arguments) > 2 else None
    if added is None:
        return None
    if gradient.dim() > 2:
        last = step.operation == PRODUCT
        gradient = gradient.flatten(1, -2).sum(1) if last else gradient.flatten(2).sum(2)
    return torch.mv(gradient, added)


def _adds(step: Step) -> bool:
    """Whether a sum or concatenation has a part that is no activation."""
    if step.operation == "aten.add.Tensor":
        return not all(isinstance(part, Slot) for part in step.arguments)
    if step.operation == "aten.cat.default":
        return not all(isinstance(part, Slot) for part in step.arguments[0])
    return False
