"""What a row of the freezing table is: the linear stand-in of one operation at one input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """One operation of the captured graph, about to be frozen.

    `arguments` and `keywords` hold the concrete values at x; `active` the positions (or names) of
    those that depend on the input.
    """

    function: Function
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    active: frozenset[int | str]


class Rule(Protocol):
    """Freezes one kind of operation."""

    @property
    def kind(self) -> str:
        """The kind's name in the table."""
        ...

    @property
    def masked(self) -> bool:
        """Whether the operation's output is a site."""
        ...

    def refusal(self, call: Call) -> str | None:
        """Why this very call cannot be frozen, or None."""
        ...

    def freeze(self, call: Call) -> Function | None:
        """The function that replaces the operation, called with the same arguments.

        None when the result is a constant of the linear network.
        """
        ...
