"""Linear layers, cut down to the outputs that something reads.

Once attention's probabilities are frozen, queries and keys have no say; where one layer gives them
together with the values, two thirds of it are computed for nobody. What is not read is zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from dmbp.linear.step import FrozenGraph, Step

LINEAR = "aten.linear.default"
MOVES = {
    *("reshape", "view", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *("permute", "transpose", "select", "slice", "narrow", "unbind", "split", "split_with_sizes"),
    *("chunk", "getitem", "contiguous", "clone"),
}
"""Operations that pick elements and move them: a map of where they go is found by running them."""


@dataclass(frozen=True)
class PartOfLinear:
    """Outputs in a row of a linear layer, between zeros."""

    before: int
    after: int

    def __call__(self, activation: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """As many outputs as the whole layer has."""
        return pad(linear(activation, weight, bias), (self.before, self.after))


@torch.no_grad()
def without_unread(frozen: FrozenGraph) -> FrozenGraph:
    """The same network; linear layers compute from the first output that is read to the last."""
    steps = [
        _cut(step, frozen) if step.operation == LINEAR and not step.keywords else step
        for step in frozen.steps
    ]
    return replace(frozen, steps=tuple(steps))


def _cut(step: Step, frozen: FrozenGraph) -> Step:
    weight, *bias = step.arguments[1:]
    read = _read(step, frozen).nonzero()[:, 0].tolist()
    if not read or len(read) == len(weight):
        return step
    kept = slice(read[0], read[-1] + 1)
    parts = [None if part is None else part[kept] for part in (weight, *bias)]
    function = PartOfLinear(kept.start, len(weight) - kept.stop)
    return replace(step, function=function, arguments=[step.arguments[0], *parts])


def _read(step: Step, frozen: FrozenGraph) -> Tensor:
    """Which outputs of a linear layer are read, once they are where they go."""
    assert step.shape is not None
    outputs = torch.arange(step.shape[-1], dtype=torch.int32)
    numbers: dict[int, Any] = {step.output: outputs.expand(step.shape)}
    read = torch.zeros(step.shape[-1], dtype=torch.bool)
    for later in frozen.steps:
        met = numbers.keys() & set(later.reads)
        if met and _moves(later, numbers):
            numbers[later.output] = later.apply(numbers)
        elif met:
            _mark(read, [numbers[index] for index in met])
    _mark(read, [numbers[frozen.result]] if frozen.result in numbers else [])
    return read


def _moves(step: Step, numbers: Mapping[int, Any]) -> bool:
    name = step.operation.removeprefix("aten.").partition(".")[0]
    return name in MOVES and step.site is None and numbers.keys() >= set(step.reads)


def _mark(read: Tensor, numbers: Sequence[Any]) -> None:
    for part in numbers:
        if isinstance(part, Tensor):
            read[part.flatten().long()] = True
        else:
            _mark(read, part)
