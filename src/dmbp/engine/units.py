"""Activations in float16, in sixteenths: a network of affine steps may be run in any unit.

    s (W h + b) = W (s h) + s b

Weights stay as they are; what is added is scaled. That is known of the steps in two tables here; a
network with any other step is run in its own unit. Activations grow with the terms while masks are
learned, to 9 000 after 200 iterations of ResNet50, and float16 ends at 65 504; at the other end
most are above 0.1, and it has 20 powers of two below that.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dmbp.engine.folding import BATCH_NORM, CONVOLUTION
from dmbp.engine.merging import MAX_POOL
from dmbp.linear.step import Slot, Step

UNIT = 2.0**-4

ADDED = {CONVOLUTION: (2,), "aten.linear.default": (2,), BATCH_NORM: (2, 3)}
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


def unit_of(steps: Sequence[Step], dtype: torch.dtype) -> float:
    """The unit in which a program of steps is run: one but in float16."""
    if dtype != torch.float16:
        return 1.0
    return UNIT if all(_is_known(step) for step in steps if step.site is None) else 1.0


def in_unit(step: Step, unit: float) -> Step:
    """A step of activations that are multiplied by `unit`."""
    places = ADDED.get(step.operation, ())
    arguments = [
        part * unit if place in places and isinstance(part, Tensor) else part
        for place, part in enumerate(step.arguments)
    ]
    return replace(step, arguments=arguments) if places else step


def _is_known(step: Step) -> bool:
    if step.keywords:
        return False
    return step.operation in ADDED or (step.operation in LINEAR and not _adds(step))


def _adds(step: Step) -> bool:
    """Whether a sum or concatenation has a part that is no activation."""
    if step.operation == "aten.add.Tensor":
        return not all(isinstance(part, Slot) for part in step.arguments)
    if step.operation == "aten.cat.default":
        return not all(isinstance(part, Slot) for part in step.arguments[0])
    return False
