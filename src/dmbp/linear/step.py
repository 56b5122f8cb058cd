"""The steps of a frozen graph: linear functions of earlier ones, some of which carry masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dmbp.linear.rule import Function


@dataclass(frozen=True)
class Site:
    """The output of an activation, where a mask sits.

    `name` is the path of the module it came from, with `:2`, `:3`… where that module has several.
    """

    name: str
    operation: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Stands in a step's arguments for the result of an earlier step."""

    index: int


@dataclass(frozen=True)
class Step:
    """One linear function of the network: `slots[output] = function(*arguments, **keywords)`.

    `operation` and `kind` are those of its row in the table, `module` is the path of the module it
    came from, `shape` that of its result, None where that is no tensor, and `finished` lists the
    slots that no later step reads.
    """

    name: str
    operation: str
    kind: str
    module: str
    function: Function
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    output: int
    shape: tuple[int, ...] | None
    site: Site | None
    finished: tuple[int, ...] = ()

    def apply(self, slots: Mapping[int, Any]) -> Any:
        """The step's result from those of earlier steps."""
        keywords = {name: fill(value, slots) for name, value in self.keywords.items()}
        return self.function(*fill(self.arguments, slots), **keywords)

    @property
    def reads(self) -> list[int]:
        """The slots it is a function of."""
        return _slots_in((self.arguments, tuple(self.keywords.values())))


@dataclass(frozen=True)
class FrozenGraph:
    """The steps from `slots[0]`, the input, to `slots[result]`; and their output at x."""

    steps: tuple[Step, ...]
    result: int
    output: Tensor


def fill(template: Any, slots: Mapping[int, Any]) -> Any:
    """Replace every `Slot` in nested lists and tuples by the value it stands for."""
    if isinstance(template, Slot):
        return slots[template.index]
    if isinstance(template, list | tuple):
        return type(template)(fill(item, slots) for item in template)
    return template


def with_finished(steps: Sequence[Step], result: int) -> tuple[Step, ...]:
    """Drop steps the result does not need, and note after which step each slot is done with."""
    needed = {result}
    kept: list[Step] = []
    for step in reversed(steps):
        if step.output not in needed:
            continue
        reads = set(step.reads)
        finished = tuple(reads - needed)
        needed |= reads
        kept.append(replace(step, finished=finished))
    return tuple(reversed(kept))


def _slots_in(template: Any) -> list[int]:
    if isinstance(template, Slot):
        return [template.index]
    if isinstance(template, list | tuple):
        return [index for item in template for index in _slots_in(item)]
    return []
