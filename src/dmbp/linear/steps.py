"""The steps of a frozen graph, and which of them carry masks.

A frozen graph is a list of steps, each a linear function of earlier ones. A step that stands for an
activation is a *site*: it can carry a mask. By default every site does; a `Selection` keeps some,
by name or with wildcards such as `layer4*`. The other activations are frozen too, but carry no
masks.

    >>> [site.name for site in dmbp.linearize(model, images, sites="1*").sites]
    ['1']
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
    """The output of an activation, which carries a mask.

    `name` is the path of the module that computes it, followed by `:2`, `:3`… if the module
    computes several.
    """

    name: str
    operation: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """A placeholder in a step's arguments for the result of an earlier step."""

    index: int


@dataclass(frozen=True)
class LinearStep:
    """One linear function of the network: `slots[output] = function(*arguments, **keywords)`.

    `operation` and `kind` are the name and the kind of its row in the freezing table, `module` is
    the path of the module that calls it, `shape` is the result's shape, or None if the result is
    not a tensor, and `finished` lists the slots that no later step reads.
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
        """Return the step's result from the results of earlier steps."""
        keywords = {name: fill(value, slots) for name, value in self.keywords.items()}
        return self.function(*fill(self.arguments, slots), **keywords)

    @property
    def reads(self) -> list[int]:
        """The slots that the step reads."""
        return _slots_in((self.arguments, tuple(self.keywords.values())))


@dataclass(frozen=True)
class FrozenGraph:
    """The steps from the input, `slots[0]`, to `slots[result]`, and the output at x."""

    steps: tuple[LinearStep, ...]
    result: int
    output: Tensor


def fill(template: Any, slots: Mapping[int, Any]) -> Any:
    """Replace every `Slot` in nested lists and tuples by the value it stands for."""
    if isinstance(template, Slot):
        return slots[template.index]
    if isinstance(template, list | tuple):
        return type(template)(fill(item, slots) for item in template)
    return template


def prune_steps(steps: Sequence[LinearStep], result: int) -> tuple[LinearStep, ...]:
    """Drop steps that the result does not need, and set which slots each step reads last."""
    needed = {result}
    kept: list[LinearStep] = []
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
"""A pattern for the names of sites, several patterns, or None for all sites."""


def select_sites(frozen: FrozenGraph, selection: Selection) -> FrozenGraph:
    """Return the same graph with masks at the selected sites only."""
    if selection is None:
        return frozen
    patterns = parse_selection(selection)
    names = [step.site.name for step in frozen.steps if step.site is not None]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            if not names:
                raise SiteError(f"the network has no sites, so none matches {pattern!r}")
            hint = suggestion(pattern, _alternatives(pattern, names))
            raise SiteError(f"the network has no site {pattern!r}; {hint}")

    def selected(step: LinearStep) -> LinearStep:
        name = "" if step.site is None else step.site.name
        kept = any(fnmatchcase(name, pattern) for pattern in patterns)
        return step if kept else replace(step, site=None)

    return replace(frozen, steps=tuple(selected(step) for step in frozen.steps))


def _alternatives(pattern: str, names: list[str]) -> list[str]:
    """Return names to suggest for a pattern; for one with `*`, modules followed by `*`."""
    if "*" not in pattern:
        return names
    parts = [name.split(".") for name in names]
    starts = [".".join(own[:depth]) for own in parts for depth in range(1, len(own) + 1)]
    return [f"{start}*" for start in dict.fromkeys(starts)]


def parse_selection(selection: Any) -> list[str]:
    """Return a selection as a list of patterns."""
    listed = [selection] if isinstance(selection, str) else selection
    if not isinstance(listed, list | tuple | set) or not all(isinstance(p, str) for p in listed):
        raise InputError(f"sites must be a name, a pattern or a list of them, not {selection!r}")
    if not listed:
        raise InputError("sites is an empty list: leave it out to select all activations")
    return list(listed)
