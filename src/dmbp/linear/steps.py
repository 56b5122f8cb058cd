"""The steps of a frozen graph: linear functions of earlier ones, some of which carry masks.

Which sites carry a mask: all of them, or those that a user names.

    >>> [site.name for site in dmbp.linearize(model, images, sites="1*").sites]
    ['1']

A name may hold wildcards, as `layer4*` does. Other activations are frozen all the same; nothing is
learned there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from dmbp.errors import InputError, SiteError, suggestion
from dmbp.linear.rules.base import Function


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


Selection = str | Sequence[str] | None
"""A pattern of sites' names, several, or None for all sites."""


def with_sites(frozen: FrozenGraph, selection: Selection) -> FrozenGraph:
    """The same graph with masks at the selected sites alone."""
    if selection is None:
        return frozen
    patterns = patterns_of(selection)
    names = [step.site.name for step in frozen.steps if step.site is not None]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SiteError(
                f"the network has no site {pattern!r}; {suggestion(pattern, _like(pattern, names))}"
                if names
                else f"the network has no sites, so none is named {pattern!r}"
            )

    def selected(step: Step) -> Step:
        name = "" if step.site is None else step.site.name
        kept = any(fnmatchcase(name, pattern) for pattern in patterns)
        return step if kept else replace(step, site=None)

    return replace(frozen, steps=tuple(selected(step) for step in frozen.steps))


def _like(pattern: str, names: list[str]) -> list[str]:
    """What could have been meant: names, or where wildcards were used, modules with one."""
    if "*" not in pattern:
        return names
    parts = [name.split(".") for name in names]
    starts = [".".join(own[:depth]) for own in parts for depth in range(1, len(own) + 1)]
    return [f"{start}*" for start in dict.fromkeys(starts)]


def patterns_of(selection: Any) -> list[str]:
    """A selection as a list of patterns."""
    listed = [selection] if isinstance(selection, str) else selection
    if not isinstance(listed, list | tuple | set) or not all(isinstance(p, str) for p in listed):
        raise InputError(f"sites are a pattern of names or a list of them, not {selection!r}")
    if not listed:
        raise InputError("sites are an empty list: leave it out for all activations")
    return list(listed)
