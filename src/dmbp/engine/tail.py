"""What comes after the last masks: an affine function of a few values, so a score is a product.

    score = Σ ⟨∇v, v⟩ + constant          over the values v that the last steps read

Neither part changes while masks are learned: the last steps run once, not at every iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.layout import FIRST, Layout
from dmbp.engine.streams import by_stream, in_order
from dmbp.linear import LinearNetwork
from dmbp.linear.step import FrozenGraph, Step


@dataclass(frozen=True)
class Tail:
    """The gradient of the score in each value that the last steps read, and the constant.

    `layouts` say where the rows of these values are, if not first.
    """

    gradients: Mapping[int, Tensor]
    constant: Tensor
    layouts: Mapping[int, Layout] = field(default_factory=dict[int, Layout])

    def scores(self, values: Mapping[int, Tensor]) -> Tensor:
        """Both streams' scores (2, rows), from the values, stacked."""
        scores, rows = self.constant.expand(2, -1), len(self.constant)
        for index, gradient in self.gradients.items():
            layout = self.layouts.get(index, FIRST)
            products = by_stream(values[index]) * gradient
            scores = scores + torch.stack([layout.by_row(p, rows).sum(1) for p in products])
        return scores

    def seeded(self, seeds: Tensor) -> dict[int, Tensor]:
        """The gradient in each value of what the loss asks, one stream's number a row."""
        return {
            index: self.layouts.get(index, FIRST).spread(seeds, part.dim()) * part
            for index, part in self.gradients.items()
        }


def tail_steps(frozen: FrozenGraph) -> list[Step]:
    """The steps from which no site is reached."""
    before_a_site: set[int] = set()
    steps: list[Step] = []
    for step in reversed(frozen.steps):
        if step.site is not None or step.output in before_a_site:
            before_a_site.update(step.reads)
        else:
            steps.append(step)
    return steps[::-1]


def read_by(steps: Sequence[Step], frozen: FrozenGraph) -> list[int]:
    """The values that some last steps read of others; the result itself where there are none."""
    made = {step.output for step in steps}
    reads = [index for step in steps for index in step.reads if index not in made]
    return list(dict.fromkeys(reads)) if frozen.result in made else [frozen.result]


@torch.enable_grad()
def tail_of(net: LinearNetwork, steps: Sequence[Step], shapes: Mapping[int, Sequence[int]]) -> Tail:
    """The tail, from the shapes of the values it reads: what it gives at zero, and its slope."""
    given = {index: net.inputs.new_zeros(shape).requires_grad_() for index, shape in shapes.items()}
    slots: dict[int, Any] = dict(given)
    for step in steps:
        slots[step.output] = step.apply(slots)
    scores = net.score(slots[steps[-1].output if steps else next(iter(given))])
    gradients = torch.autograd.grad(
        scores.sum(), list(given.values()), allow_unused=True, materialize_grads=True
    )
    parts = {index: in_order(part) for index, part in zip(given, gradients, strict=True)}
    return Tail(parts, scores.detach())
