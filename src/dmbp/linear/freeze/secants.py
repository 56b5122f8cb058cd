"""A network between two inputs: every activation by its secant, so that it is exact at both.

    slope = (φ(z) − φ(z₀)) / (z − z₀)        z at the input, z₀ at the baseline

The map from pixels to the score then has y(x) − y(x₀) = m · (x − x₀) exactly, which is DeepLift's
Rescale rule (Shrikumar et al., ICML 2017) for the whole graph. An operation that picks a winner
follows the input's winner, or the baseline's where the output falls, scaled likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.base import Function
from dmbp.linear.steps import FrozenGraph, Step

ROUNDING = 4
"""Where z and z₀ differ by no more units in the last place, the slope is the gradient's."""


@dataclass(frozen=True)
class ScaledChoice:
    """Picks the input's winner or the baseline's, times a weight, plus an offset."""

    at_input: Function
    at_baseline: Function
    input_wins: Tensor
    weight: Tensor
    offset: Tensor

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The same choice for other activations."""
        mine, baseline = self.at_input(*arguments, **keywords), self.at_baseline(*arguments)
        if isinstance(mine, tuple):
            return self._scaled(mine[0], baseline[0]), mine[1]
        return self._scaled(mine, baseline)

    def _scaled(self, mine: Tensor, baseline: Tensor) -> Tensor:
        return torch.where(self.input_wins, mine, baseline) * self.weight + self.offset


@torch.no_grad()
def secants(
    at_input: FrozenGraph, at_baseline: FrozenGraph, inputs: Tensor, baselines: Tensor
) -> FrozenGraph:
    """The affine graph that takes the model's values at both ends.

    Both graphs are the same one, frozen at the inputs and at the baselines.
    """
    slots: list[dict[int, Any]] = [{0: inputs}, {0: baselines}]
    steps: list[Step] = []
    for one, other in zip(at_input.steps, at_baseline.steps, strict=True):
        results = [one.apply(slots[0]), other.apply(slots[1])]
        steps.append(replace(one, function=_between(one, other, slots, results)))
        for values, result in zip(slots, results, strict=True):
            values[one.output] = result
            for index in one.finished:
                del values[index]
    return replace(at_input, steps=tuple(steps))


def _between(
    one: Step, other: Step, slots: Sequence[dict[int, Any]], results: Sequence[Any]
) -> Function:
    if isinstance(one.function, ElementwiseLine):
        z, baseline = (values[one.reads[0]] for values in slots)
        return _secant_piece(one.function, z, baseline, results)
    if one.kind == "choice":
        return _secant_choice(one, other, slots, results)
    return one.function


def _secant_piece(
    piece: ElementwiseLine, z: Tensor, baseline: Tensor, results: Sequence[Tensor]
) -> ElementwiseLine:
    close = _equal(z, baseline)
    ratio = (results[0] - results[1]) / torch.where(close, 1, z - baseline)
    slope = torch.where(close, piece.slope.to(ratio.dtype), ratio)
    return ElementwiseLine(slope, results[0] - slope * z)


def _secant_choice(
    one: Step, other: Step, slots: Sequence[dict[int, Any]], results: Sequence[Any]
) -> ScaledChoice:
    def picked(step: Step, values: dict[int, Any]) -> Tensor:
        return _value(step.apply(values))

    # One of both winners changes at least as far as the output: its weight is within 0 and 1.
    ends = (_value(results[0]), _value(results[1]))
    weights = [
        _ratio(ends, (picked(step, slots[0]), picked(step, slots[1]))) for step in (one, other)
    ]
    input_wins = (weights[0] >= 0) & (weights[0] <= 1)
    weight = torch.where(input_wins, *weights)
    chosen = torch.where(input_wins, picked(one, slots[0]), picked(other, slots[0]))
    offset = _value(results[0]) - weight * chosen
    return ScaledChoice(one.function, other.function, input_wins, weight, offset)


def _ratio(ends: tuple[Tensor, Tensor], winner: tuple[Tensor, Tensor]) -> Tensor:
    """How much of a winner's change the output shows; infinite for a winner that does not move."""
    still, level = _equal(*winner), _equal(*ends)
    ratio = (ends[0] - ends[1]) / torch.where(still, 1, winner[0] - winner[1])
    return torch.where(still, torch.where(level, 1.0, torch.inf).to(ratio.dtype), ratio)


def _equal(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors are the same up to rounding."""
    unit = ROUNDING * torch.finfo(one.dtype).eps
    return (one - other).abs() <= unit * torch.maximum(one.abs(), other.abs())


def _value(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
