"""Which sites carry a mask: all of them, or those that a user names.

    >>> [site.name for site in dmbp.linearize(model, images, sites="1*").sites]
    ['1']

A name may hold wildcards, as `layer4*` does. Other activations are frozen all the same; nothing is
learned there.
"""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from dmbp.errors import InputError, SiteError
from dmbp.linear.step import FrozenGraph, Step
from dmbp.names import suggestion

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
