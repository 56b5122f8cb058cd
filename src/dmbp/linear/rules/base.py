"""What part a value plays where it meets another in a product: one of the two has to be frozen.

A gate or a weight says *how much* of the other factor passes, so it is the one that is frozen at x:
of `x * sigmoid(g)` the sigmoid, of attention its probabilities, of `x / norm(x)` the norm. The role
of a value is that of the operation that made it; what is moved, cut, averaged or shifted keeps its
role, and what several values are put together of has the least of theirs.

What a row of the freezing table is: the linear stand-in of one operation at one input.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from dmbp.linear.lines import LineRule, tangent


class Role(IntEnum):
    """In a product of two values that depend on the input, the one of the higher role is frozen."""

    PLAIN = 0
    """Made of weights and sums: it carries."""

    ACTIVATION = 1
    """What an activation function put out."""

    WEIGHT = 2
    """A number between zero and one: a sigmoid, a softmax."""

    NORMALISER = 3
    """A size that others are divided by: a norm, a deviation, a reciprocal."""


def least(roles: Iterable[Role]) -> Role:
    """The role of what several values are put together of."""
    return min(roles, default=Role.PLAIN)


Function = Callable[..., Any]
Place = int | str
"""An argument's position, or its name where it is given by name."""


@dataclass(frozen=True)
class OperationCall:
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
    line: LineRule = tangent

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its position or by its name."""
        if position < len(self.arguments):
            return self.arguments[position]
        return self.keywords.get(name, default)


class Rule(ABC):
    """Freezes one kind of operation."""

    kind: ClassVar[str]
    """The kind's name in the table."""

    def refusal(self, call: OperationCall) -> str | None:
        """Why this very call cannot be frozen, or None."""
        return None

    def held(self, call: OperationCall) -> frozenset[Place]:
        """The active arguments that are frozen at x instead of computed."""
        return frozenset()

    def masks(self, call: OperationCall) -> bool:
        """Whether the operation's output is a site."""
        return False

    def role(self, call: OperationCall) -> Role:
        """The role of the operation's output."""
        return least(call.roles.values())

    @abstractmethod
    def freeze(self, call: OperationCall) -> Function | None:
        """The function that replaces the operation, called with the same arguments.

        None when the result is a constant of the linear network.
        """
