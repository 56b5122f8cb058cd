"""Any affine step, as it is: what a fast engine does with operations it knows nothing about."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.streams import Apart, Example, Value, apart, stacked
from dmbp.linear.step import Step


class GeneralOperation:
    """Any other affine step, on each stream alone; its transpose by autograd, recorded once."""

    stacks = False

    def __init__(self, step: Step, examples: Sequence[Example]) -> None:
        given = dict(zip(step.reads, examples, strict=True))  # what is read twice counts once
        self.reads = list(given)
        self._step = step
        with torch.enable_grad():
            self._given = {k: _as_variables(example.value) for k, example in given.items()}
            self._result = step.apply(self._given)

    def forward(self, values: Sequence[Value]) -> Value:
        """The step's function of each stream."""
        halves = [apart(value) for value in values]
        results = [
            self._step.apply(dict(zip(self.reads, side, strict=True)))
            for side in (
                [half.positive for half in halves],
                [half.negative for half in halves],
            )
        ]
        return Apart(*results)

    def transpose(self, gradient: Any) -> Sequence[Any]:
        """The recorded function, backwards."""
        results, gradients = _pairs(self._result, gradient)
        if not results:
            return [None] * len(self.reads)
        leaves = [leaf for given in self._given.values() for leaf in _leaves(given)]
        found = iter(
            torch.autograd.grad(results, leaves, gradients, retain_graph=True, allow_unused=True)
        )
        return [_like(self._given[index], found) for index in self.reads]


def _as_variables(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.is_floating_point())
    if isinstance(value, list | tuple):
        return type(value)(_as_variables(item) for item in value)
    return value


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return []


def _like(value: Any, found: Any) -> Any:
    """Gradients in the form of the value they are of."""
    if isinstance(value, Tensor):
        return next(found) if value.requires_grad else None
    if isinstance(value, list | tuple):
        return [_like(item, found) for item in value]
    return None


def _pairs(result: Any, gradient: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of a result that have a gradient, and the gradients."""
    if gradient is None:
        return [], []
    if isinstance(result, Tensor):  # one that constants were written over has no gradient
        return ([result], [gradient]) if result.requires_grad else ([], [])
    pairs = [_pairs(item, part) for item, part in zip(result, gradient, strict=True)]
    return [r for pair in pairs for r in pair[0]], [g for pair in pairs for g in pair[1]]


class RowByRowOperation(GeneralOperation):
    """An operation that never mixes rows: both streams at once."""

    stacks = True

    def forward(self, values: Sequence[Value]) -> Tensor:
        """The step's function of all rows."""
        given = dict(zip(self.reads, [stacked(value) for value in values], strict=True))
        return self._step.apply(given)
