"""Operations that work element by element, and what they make of one activation z.

    degree    constant (z > 0), linear (in pieces: relu(z)), or curved (z · sigmoid(z))
    role      what the value is where it meets another in a product (`role.py`)

Both are read from the graph alone. `regions.py` asks for them: an activation that a model writes
out is a run of these operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.linear.rules.base import Role, least
from dmbp.linear.rules.gates import GATES
from dmbp.linear.rules.smooth import SMOOTH, Smooth
from dmbp.linear.rules.table import operation_name


class Degree(IntEnum):
    """How a value changes with z, between the places where it jumps or bends."""

    CONSTANT = 0
    LINEAR = 1
    CURVED = 2


@dataclass(frozen=True)
class Nature:
    """What is known of a value."""

    degree: Degree
    role: Role


CONSTANT = Nature(Degree.CONSTANT, Role.PLAIN)
ACTIVATION = Nature(Degree.LINEAR, Role.PLAIN)
"""z itself."""

Given = Sequence[Nature]
"""The natures of an operation's arguments, by their positions."""


@dataclass(frozen=True)
class Kind:
    """How an operation's nature follows from its arguments', and when it is no linear map."""

    nature: Callable[[Node, Given], Nature]
    bends: Callable[[Given], bool]


def nature_of(node: Node, natures: Mapping[Node, Nature]) -> Nature:
    """The nature of an element-by-element operation's result."""
    return KINDS[operation_name(node.target)].nature(node, given_to(node, natures))


def bends(node: Node, natures: Mapping[Node, Nature]) -> bool:
    """Whether an operation is more than a linear map of z."""
    return KINDS[operation_name(node.target)].bends(given_to(node, natures))


def given_to(node: Node, natures: Mapping[Node, Nature]) -> Given:
    """The natures of a node's arguments."""
    return [
        natures.get(given, CONSTANT) if isinstance(given, Node) else CONSTANT for given in node.args
    ]


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node's result is made of the same elements of its arguments."""
    makes_tensor = isinstance(node.meta.get("val"), Tensor)
    if not makes_tensor or operation_name(node.target) not in KINDS:
        return False
    settings: Any = (*node.args[1:], *node.kwargs.values())
    return not any(value is True or _is_integer(value) for value in settings)


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.dtype) and not value.is_floating_point


def _moving(given: Given) -> list[Nature]:
    return [nature for nature in given if nature.degree > Degree.CONSTANT]


def _passed(_: Node, given: Given) -> Nature:
    moving = _moving(given)
    degree = max((nature.degree for nature in moving), default=Degree.CONSTANT)
    return Nature(degree, least(nature.role for nature in moving))


def _decided(*_: object) -> Nature:
    return CONSTANT


def _gated(_: Node, given: Given) -> Nature:
    return Nature(given[0].degree, max(Role.ACTIVATION, given[0].role))


def _picked(node: Node, given: Given) -> Nature:
    found = _passed(node, given)
    return Nature(found.degree, max(Role.ACTIVATION, found.role))


def _curved(node: Node, given: Given) -> Nature:
    if not _moving(given):
        return CONSTANT
    rule = SMOOTH[operation_name(node.target)]
    assert isinstance(rule, Smooth)
    made = Role.NORMALISER if _is_root(node) else max(Role.ACTIVATION, rule.made)
    is_inverse = made == Role.NORMALISER and given[0].role == Role.WEIGHT
    return Nature(Degree.CURVED, Role.WEIGHT if is_inverse else made)


def _is_root(node: Node) -> bool:
    """Whether a power is a root or a reciprocal: something others are divided by."""
    exponent = node.args[1] if len(node.args) > 1 else None
    return isinstance(exponent, float | int) and exponent < 1


def _multiplied(_: Node, given: Given) -> Nature:
    moving = _moving(given)
    degree = Degree(min(Degree.CURVED, sum(nature.degree for nature in moving)))
    role = least(nature.role for nature in moving)
    return Nature(degree, max(Role.ACTIVATION, role) if len(moving) > 1 else role)


def _divided(_: Node, given: Given) -> Nature:
    numerator, denominator = given
    if denominator.degree == Degree.CONSTANT:
        return numerator
    if numerator.degree > Degree.CONSTANT:
        return Nature(Degree.CURVED, max(Role.ACTIVATION, numerator.role))
    # One over 1 + exp(−z) is a sigmoid, one over anything else a size to be divided by.
    is_weight = denominator.role == Role.WEIGHT
    return Nature(Degree.CURVED, Role.WEIGHT if is_weight else Role.NORMALISER)


def _never(_: Given) -> bool:
    return False


def _if_any(given: Given) -> bool:
    return bool(_moving(given))


def _if_both(given: Given) -> bool:
    return len(_moving(given)) > 1


def _if_second(given: Given) -> bool:
    return given[1].degree > Degree.CONSTANT


PASSED = Kind(_passed, _never)
DECIDED = Kind(_decided, _never)
GATED = Kind(_gated, _if_any)
PICKED = Kind(_picked, _if_any)
CURVED = Kind(_curved, _if_any)
MULTIPLIED = Kind(_multiplied, _if_both)
DIVIDED = Kind(_divided, _if_second)


def _rows(kind: Kind, names: str) -> dict[str, Kind]:
    return {f"aten.{name}": kind for name in names.split()}


KINDS: Mapping[str, Kind] = {
    **_rows(
        PASSED,
        """
        add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor neg.default
        positive.default alias.default clone.default contiguous.default detach.default
        lift_fresh_copy.default dropout.default feature_dropout.default alpha_dropout.default
        feature_alpha_dropout.default _to_copy.default to.dtype to.dtype_layout to.device
        type_as.default
        """,
    ),
    **_rows(
        DECIDED,
        """
        gt.Tensor gt.Scalar ge.Tensor ge.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar eq.Tensor
        eq.Scalar ne.Tensor ne.Scalar logical_not.default logical_and.default logical_or.default
        logical_xor.default bitwise_and.Tensor bitwise_or.Tensor bitwise_not.default sign.default
        zeros_like.default ones_like.default full_like.default
        """,
    ),
    **_rows(PICKED, "where.self maximum.default minimum.default"),
    **dict.fromkeys(GATES, GATED),
    **{name: CURVED for name, rule in SMOOTH.items() if isinstance(rule, Smooth)},
    **_rows(MULTIPLIED, "mul.Tensor mul.Scalar"),
    **_rows(DIVIDED, "div.Tensor div.Scalar"),
}
"""Operations of the freezing table that work element by element."""
