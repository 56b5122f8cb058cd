"""What a row of the freezing table is: the linear stand-in of one operation at one input."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dmbp.linear.lines import Line, tangent
from dmbp.linear.role import Role, least

Function = Callable[..., Any]
Place = int | str
"""An argument's position, or its name where it is given by name."""


@dataclass(frozen=True)
class Call:
    """One operation of the captured graph, about to be frozen.

    `arguments` and `keywords` hold the concrete values at x; `active` the places of those that the
    linear network computes; `roles` the roles of all that depend on the input, frozen or not.
    `line` is what smooth activations are to be replaced by.
    """

    function: Function
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    active: frozenset[Place]
    roles: Mapping[Place, Role] = field(default_factory=dict[Place, Role])
    line: Line = tangent

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its position or by its name."""
        if position < len(self.arguments):
            return self.arguments[position]
        return self.keywords.get(name, default)


class Rule(ABC):
    """Freezes one kind of operation."""

    kind: ClassVar[str]
    """The kind's name in the table."""

    def refusal(self, call: Call) -> str | None:
        """Why this very call cannot be frozen, or None."""
        return None

    def held(self, call: Call) -> frozenset[Place]:
        """The active arguments that are frozen at x instead of computed."""
        return frozenset()

    def masks(self, call: Call) -> bool:
        """Whether the operation's output is a site."""
        return False

    def role(self, call: Call) -> Role:
        """The role of the operation's output."""
        return least(call.roles.values())

    @abstractmethod
    def freeze(self, call: Call) -> Function | None:
        """The function that replaces the operation, called with the same arguments.

        None when the result is a constant of the linear network.
        """
