"""Activations in float16, in sixty-fourths: a network of affine steps may be run in any unit.

    s (W h + b) = W (s h) + s b

Weights stay as they are; what is added is scaled. That is known of some steps (`added`); a
network with any other is run in its own unit. Activations grow with the terms while masks are
learned, to 530 000 in ResNet50 (50 iterations at a rate of 0.05), and float16 ends at 65 504; at
the other end most are above 0.1, and in the unit it keeps all its bits down to 0.004.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dmbp.engine.added import ADDED, is_known
from dmbp.linear.step import Step

UNIT = 2.0**-6


def unit_of(steps: Sequence[Step], dtype: torch.dtype) -> float:
    """The unit in which a program of steps is run: one but in float16."""
    if dtype != torch.float16:
        return 1.0
    return UNIT if all(is_known(step) for step in steps if step.site is None) else 1.0


def in_unit(step: Step, unit: float) -> Step:
    """A step of activations that are multiplied by `unit`."""
    places = ADDED.get(step.operation, ())
    arguments = [
        part * unit if place in places and isinstance(part, Tensor) else part
        for place, part in enumerate(step.arguments)
    ]
    return replace(step, arguments=arguments) if places else step
