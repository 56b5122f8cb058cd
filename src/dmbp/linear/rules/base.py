"""The interface of a freezing rule: what it receives, what it returns, and roles in products.

A `Rule` is a row of the freezing table. It receives an `OperationCall`, one operation with its
arguments at x, and returns the linear function that replaces the operation.

If two values that both depend on the input are multiplied, one of them has to be frozen. Each
value therefore has a `Role`. A gate or a weight says *how much* of the other factor passes, so it
is the one that is frozen: the sigmoid in `x * sigmoid(g)`, the probabilities in attention, the norm
in `x / norm(x)`. `products.py` lists the rules in full. The operation that computes a value
determines its role. Moving, cutting, averaging or shifting a value keeps its role, and a
combination of several values has the lowest of their roles.
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
    """A value's role in products; as a rule, the factor of the higher role is frozen."""

    PLAIN = 0
    """Computed by weights and sums; products stay linear in it."""

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
    """A call of an operation in the captured graph, which is about to be frozen.

    `arguments` and `keywords` are the values at x. `active` has the keys of the arguments that the
    linear network computes, and `roles` has the role of every argument that depends on the input,
    frozen or not. `line` returns the lines that replace smooth activations.
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
    """Freezes one kind of operation; subclasses have to define only `kind` and `freeze`."""

    kind: ClassVar[str]
    """The kind's name, as `dmbp doctor` reports it."""

    @abstractmethod
    def freeze(self, call: OperationCall) -> Function | None:
        """Return the linear function that replaces the operation.

        The function is called with the arguments of the operation. None means that the result is a
        constant of the linear network.
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
    """Return a reason if another argument than the first depends on the input, or None."""
    only_first = call.active == frozenset[ArgumentKey]({0})
    return None if only_first else "its settings depend on the input"


_Row = TypeVar("_Row")


def same_rule(rule: _Row, names: str) -> dict[str, _Row]:
    """Return a table with one rule for all ATen operations in `names`, separated by spaces."""
    return {f"aten.{name}": rule for name in names.split()}
