"""DeepLift's network, exact at two inputs: secants between them replace all activations.

    slope = (φ(z) − φ(z₀)) / (z − z₀)        z at the input, z₀ at the baseline

The map m from pixels to the score then satisfies y(x) − y(x₀) = m · (x − x₀) exactly, which is
DeepLift's Rescale rule (Shrikumar et al., ICML 2017) for the whole graph. `attribution/deeplift.py`
is the only method that uses it. An operation that picks a winner follows the input's winner or the
baseline's, whichever changes at least as much as the output, scaled in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.base import Function
from dmbp.linear.steps import FrozenGraph, LinearStep

ROUNDING = 4
"""If z and z₀ differ by at most this many units in the last place, the tangent's slope is used."""


@torch.no_grad()
def with_secants(
    at_input: FrozenGraph, at_baseline: FrozenGraph, inputs: Tensor, baselines: Tensor
) -> FrozenGraph:
    """Return the affine graph that takes the model's values at both the inputs and the baselines.

    `at_input` and `at_baseline` are the same captured graph, frozen at either.
    """
    slots: list[dict[int, Any]] = [{0: inputs}, {0: baselines}]
    steps: list[LinearStep] = []
    for step, baseline_step in zip(at_input.steps, at_baseline.steps, strict=True):
        results = [step.apply(slots[0]), baseline_step.apply(slots[1])]
        function = _secant(step, baseline_step, slots, results)
        steps.append(replace(step, function=function))
        for values, result in zip(slots, results, strict=True):
            values[step.output] = result
            for index in step.finished:
                del values[index]
    return replace(at_input, steps=tuple(steps))


@dataclass(frozen=True)
class ScaledChoice:
    """Picks the input's winner or the baseline's, multiplied by a weight, plus an offset."""

    at_input: Function
    at_baseline: Function
    input_wins: Tensor
    weight: Tensor
    offset: Tensor

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Make the same choice for other activations."""
        own, baseline = self.at_input(*arguments, **keywords), self.at_baseline(*arguments)
        if isinstance(own, tuple):
            return self._scaled(own[0], baseline[0]), own[1]
        return self._scaled(own, baseline)

    def _scaled(self, own: Tensor, baseline: Tensor) -> Tensor:
        return torch.where(self.input_wins, own, baseline) * self.weight + self.offset


def _secant(
    step: LinearStep,
    baseline_step: LinearStep,
    slots: Sequence[dict[int, Any]],
    results: Sequence[Any],
) -> Function:
    """Return a function that takes the step's values at both the input and the baseline."""
    if isinstance(step.function, ElementwiseLine):
        z, baseline = (values[step.reads[0]] for values in slots)
        return _secant_line(step.function, z, baseline, results)
    if step.kind == "choice":
        return _secant_choice(step, baseline_step, slots, results)
    return step.function


def _secant_line(
    line: ElementwiseLine, z: Tensor, baseline: Tensor, results: Sequence[Tensor]
) -> ElementwiseLine:
    close = _equal(z, baseline)
    ratio = (results[0] - results[1]) / torch.where(close, 1, z - baseline)
    slope = torch.where(close, line.slope.to(ratio.dtype), ratio)
    return ElementwiseLine(slope, results[0] - slope * z)


def _secant_choice(
    step: LinearStep,
    baseline_step: LinearStep,
    slots: Sequence[dict[int, Any]],
    results: Sequence[Any],
) -> ScaledChoice:
    def picked(winner: LinearStep, values: dict[int, Any]) -> Tensor:
        return _value(winner.apply(values))

    # At least one of the winners changes as much as the output or more: its weight is in [0, 1].
    outputs = (_value(results[0]), _value(results[1]))
    weights = [
        _ratio(outputs, (picked(winner, slots[0]), picked(winner, slots[1])))
        for winner in (step, baseline_step)
    ]
    input_wins = (weights[0] >= 0) & (weights[0] <= 1)
    weight = torch.where(input_wins, *weights)
    chosen = torch.where(input_wins, picked(step, slots[0]), picked(baseline_step, slots[0]))
    offset = _value(results[0]) - weight * chosen
    return ScaledChoice(step.function, baseline_step.function, input_wins, weight, offset)


def _ratio(outputs: tuple[Tensor, Tensor], winner: tuple[Tensor, Tensor]) -> Tensor:
    """Return the output's change relative to a winner's; infinite if the winner does not change."""
    is_still, is_level = _equal(*winner), _equal(*outputs)
    ratio = (outputs[0] - outputs[1]) / torch.where(is_still, 1, winner[0] - winner[1])
    return torch.where(is_still, torch.where(is_level, 1.0, torch.inf).to(ratio.dtype), ratio)


def _equal(first: Tensor, second: Tensor) -> Tensor:
    """Return a mask of the elements in which two tensors are equal up to rounding."""
    unit = ROUNDING * torch.finfo(first.dtype).eps
    return (first - second).abs() <= unit * torch.maximum(first.abs(), second.abs())


def _value(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
