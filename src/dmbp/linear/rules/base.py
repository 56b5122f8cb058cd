"""The interface of a freezing rule: what it is given, what it returns, and roles in products.

A `Rule` is a row of the freezing table. It is given an `OperationCall`, one operation with its
arguments at x, and returns the linear function that replaces the operation.

If two values that both depend on the input are multiplied, one of them has to be frozen. Each
value therefore has a `Role`. A gate or a weight says *how much* of the other factor passes, so it
is the one that is frozen: the sigmoid in `x * sigmoid(g)`, the probabilities in attention, the norm
in `x / norm(x)`. The operation that computes a value determines its role. Moving, cutting,
averaging or shifting a value keeps its role, and a combination of several values has the lowest of
their roles.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from dmbp.linear.lines import LineRule, tangent

Function = Callable[..., Any]

ArgumentKey = int | str
"""An argument's position, or its name if it is passed by name."""


class Role(IntEnum):
    """In a product of two values that depend on the input, the higher role is frozen."""

    PLAIN = 0
    """Computed by weights and sums; it carries the signal."""

    ACTIVATION = 1
    """The output of an activation function."""

    WEIGHT = 2
    """A number between zero and one: a sigmoid, a softmax."""

    NORMALISER = 3
    """A size that other values are divided by: a norm, a deviation, a reciprocal."""


def lowest_role(roles: Iterable[Role]) -> Role:
    """Return the role of a combination of values with these roles."""
    return min(roles, default=Role.PLAIN)


@dataclass(frozen=True)
class OperationCall:
    """One operation of the captured graph, about to be frozen.

    `arguments` and `keywords` are the values at x. `active` names the arguments that the linear
    network computes, and `roles` has the role of every argument that depends on the input, frozen
    or not. `line` replaces smooth activations.
    """

    function: Function
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    active: frozenset[ArgumentKey]
    roles: Mapping[ArgumentKey, Role] = field(default_factory=dict[ArgumentKey, Role])
    line: LineRule = tangent

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that may be passed by position or by name."""
        if position < len(self.arguments):
            return self.arguments[position]
        return self.keywords.get(name, default)


class Rule(ABC):
    """Freezes one kind of operation. Only `kind` and `freeze` must be defined."""

    kind: ClassVar[str]
    """The kind's name, as `dmbp doctor` reports it."""

    @abstractmethod
    def freeze(self, call: OperationCall) -> Function | None:
        """Return the linear function that replaces the operation.

        It is called with the arguments of the operation. None means that the result is a constant
        of the linear network.
        """

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this particular call cannot be frozen, or None."""
        return None

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return the active arguments that keep their value at x."""
        return frozenset()

    def is_site(self, call: OperationCall) -> bool:
        """Return whether the operation's output carries a mask."""
        return False

    def role(self, call: OperationCall) -> Role:
        """Return the role of the operation's output."""
        return lowest_role(call.roles.values())


def refuse_active_settings(call: OperationCall) -> str | None:
    """Refuse a call in which more than the first argument depends on the input."""
    alone = call.active == frozenset[ArgumentKey]({0})
    return None if alone else "its settings depend on the input"


_Row = TypeVar("_Row")


def same_rule(rule: _Row, names: str) -> dict[str, _Row]:
    """Return a table with the same rule for several ATen operations, separated by spaces."""
    return {f"aten.{name}": rule for name in names.split()}
