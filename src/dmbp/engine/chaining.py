"""Concatenations that grow: one that begins as an earlier one does is that one and what is new.

    cat(a, b, c, d)  =  cat(cat(a, b, c), d)

DenseNets put every layer's output behind all that came before it. As written, going back splits the
gradient of the last layer of a block into as many parts as there are layers, and that of each layer
before it; in a chain every one is split in two.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dmbp.linear.step import FrozenGraph, Slot, Step, with_finished

CONCATENATION = "aten.cat.default"


def chained(frozen: FrozenGraph) -> FrozenGraph:
    """The same network with concatenations chained."""
    earlier: list[Step] = []
    steps: list[Step] = []
    for step in frozen.steps:
        if _parts(step) is None:
            steps.append(step)
        else:
            steps.append(_chained(step, earlier))
            earlier.append(step)
    return replace(frozen, steps=with_finished(steps, frozen.result))


def _chained(step: Step, earlier: Sequence[Step]) -> Step:
    """A concatenation behind the longest earlier one that it begins with."""
    parts = _parts(step) or []
    others = [other for other in earlier if other.arguments[1:] == step.arguments[1:]]
    begins = [other for other in others if parts[: len(_parts(other) or [])] == _parts(other)]
    if not begins:
        return step
    longest = max(begins, key=lambda other: len(other.arguments[0]))
    rest = parts[len(longest.arguments[0]) :]
    if not rest:
        return step
    return replace(step, arguments=[[Slot(longest.output), *rest], *step.arguments[1:]])


def _parts(step: Step) -> list[Any] | None:
    """What a step puts together, if it is a concatenation of earlier results alone."""
    if step.operation != CONCATENATION or step.keywords or len(step.arguments) != 2:
        return None
    parts = list(step.arguments[0])
    return parts if all(isinstance(part, Slot) for part in parts) else None
