"""What part a value plays where it meets another in a product: one of the two has to be frozen.

A gate or a weight says *how much* of the other factor passes, so it is the one that is frozen at x:
of `x * sigmoid(g)` the sigmoid, of attention its probabilities, of `x / norm(x)` the norm. The role
of a value is that of the operation that made it; what is moved, cut, averaged or shifted keeps its
role, and what several values are put together of has the least of theirs.
"""

from collections.abc import Iterable
from enum import IntEnum


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
