"""Elementwise operations, and how their results depend on one activation z.

    degree    constant (z > 0), piecewise linear (relu(z)), or curved (z · sigmoid(z))
    role      the value's role in products (`rules.base.Role`)

Both follow from the graph alone. `composite.py` uses them to find activations that a model writes
out as several of these operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.linear.rules.base import Role, lowest_role, same_rule
from dmbp.linear.rules.gates import GATES
from dmbp.linear.rules.smooth import SMOOTH, Smooth
from dmbp.linear.rules.table import operation_name


class Degree(IntEnum):
    """How a value changes with z between the points where it jumps or has a kink."""

    CONSTANT = 0
    LINEAR = 1
    CURVED = 2


@dataclass(frozen=True)
class Dependence:
    """How a value depends on z: its degree and its role."""

    degree: Degree
    role: Role


CONSTANT = Dependence(Degree.CONSTANT, Role.PLAIN)
ROOT = Dependence(Degree.LINEAR, Role.PLAIN)
"""The dependence of z itself."""

Arguments = Sequence[Dependence]
"""The dependences of an operation's arguments, by position."""


@dataclass(frozen=True)
class ElementwiseKind:
    """How an operation's result depends on z, and for which arguments it is nonlinear."""

    dependence: Callable[[Node, Arguments], Dependence]
    is_nonlinear: Callable[[Arguments], bool]


def dependence_of(node: Node, known: Mapping[Node, Dependence]) -> Dependence:
    """Return how an elementwise operation's result depends on z."""
    return elementwise_kind(node).dependence(node, _arguments(node, known))


def is_nonlinear(node: Node, known: Mapping[Node, Dependence]) -> bool:
    """Return whether an operation is not a linear map of what it reads."""
    return elementwise_kind(node).is_nonlinear(_arguments(node, known))


def elementwise_kind(node: Node) -> ElementwiseKind:
    """Return the kind of an elementwise operation."""
    return ELEMENTWISE[operation_name(node.target)]


def is_elementwise(node: Node) -> bool:
    """Return whether each element of the result depends on the same element of the arguments."""
    makes_tensor = isinstance(node.meta.get("val"), Tensor)
    if not makes_tensor or operation_name(node.target) not in ELEMENTWISE:
        return False
    settings: Any = (*node.args[1:], *node.kwargs.values())
    return not any(value is True or _is_integer_dtype(value) for value in settings)


def _arguments(node: Node, known: Mapping[Node, Dependence]) -> Arguments:
    return [
        known.get(argument, CONSTANT) if isinstance(argument, Node) else CONSTANT
        for argument in node.args
    ]


def _is_integer_dtype(value: Any) -> bool:
    return isinstance(value, torch.dtype) and not value.is_floating_point


def _varying(arguments: Arguments) -> list[Dependence]:
    return [argument for argument in arguments if argument.degree > Degree.CONSTANT]


def _linear(_: Node, arguments: Arguments) -> Dependence:
    varying = _varying(arguments)
    degree = max((argument.degree for argument in varying), default=Degree.CONSTANT)
    return Dependence(degree, lowest_role(argument.role for argument in varying))


def _decision(*_: object) -> Dependence:
    return CONSTANT


def _gate(_: Node, arguments: Arguments) -> Dependence:
    return Dependence(arguments[0].degree, max(Role.ACTIVATION, arguments[0].role))


def _choice(node: Node, arguments: Arguments) -> Dependence:
    candidates = _linear(node, arguments)
    return Dependence(candidates.degree, max(Role.ACTIVATION, candidates.role))


def _curve(node: Node, arguments: Arguments) -> Dependence:
    if not _varying(arguments):
        return CONSTANT
    rule = SMOOTH[operation_name(node.target)]
    assert isinstance(rule, Smooth)
    role = Role.NORMALISER if _is_root(node) else max(Role.ACTIVATION, rule.output_role)
    is_inverse = role == Role.NORMALISER and arguments[0].role == Role.WEIGHT
    return Dependence(Degree.CURVED, Role.WEIGHT if is_inverse else role)


def _is_root(node: Node) -> bool:
    """Return whether a power is a root or a reciprocal, which other values are divided by."""
    exponent = node.args[1] if len(node.args) > 1 else None
    return isinstance(exponent, float | int) and exponent < 1


def _product(_: Node, arguments: Arguments) -> Dependence:
    varying = _varying(arguments)
    degree = Degree(min(Degree.CURVED, sum(argument.degree for argument in varying)))
    role = lowest_role(argument.role for argument in varying)
    return Dependence(degree, max(Role.ACTIVATION, role) if len(varying) > 1 else role)


def _quotient(_: Node, arguments: Arguments) -> Dependence:
    numerator, denominator = arguments
    if denominator.degree == Degree.CONSTANT:
        return numerator
    if numerator.degree > Degree.CONSTANT:
        return Dependence(Degree.CURVED, max(Role.ACTIVATION, numerator.role))
    # 1 / (1 + exp(−z)) is a sigmoid; other reciprocals are sizes that values are divided by.
    is_weight = denominator.role == Role.WEIGHT
    return Dependence(Degree.CURVED, Role.WEIGHT if is_weight else Role.NORMALISER)


def _never(_: Arguments) -> bool:
    return False


def _if_any_varies(arguments: Arguments) -> bool:
    return bool(_varying(arguments))


def _if_several_vary(arguments: Arguments) -> bool:
    return len(_varying(arguments)) > 1


def _if_second_varies(arguments: Arguments) -> bool:
    return arguments[1].degree > Degree.CONSTANT


LINEAR = ElementwiseKind(_linear, _never)
DECISION = ElementwiseKind(_decision, _never)
GATE = ElementwiseKind(_gate, _if_any_varies)
CHOICE = ElementwiseKind(_choice, _if_any_varies)
CURVE = ElementwiseKind(_curve, _if_any_varies)
PRODUCT = ElementwiseKind(_product, _if_several_vary)
QUOTIENT = ElementwiseKind(_quotient, _if_second_varies)

ELEMENTWISE: Mapping[str, ElementwiseKind] = {
    **same_rule(
        LINEAR,
        """
        add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor neg.default
        positive.default alias.default clone.default contiguous.default detach.default
        lift_fresh_copy.default dropout.default feature_dropout.default alpha_dropout.default
        feature_alpha_dropout.default _to_copy.default to.dtype to.dtype_layout to.device
        type_as.default
        """,
    ),
    **same_rule(
        DECISION,
        """
        gt.Tensor gt.Scalar ge.Tensor ge.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar eq.Tensor
        eq.Scalar ne.Tensor ne.Scalar logical_not.default logical_and.default logical_or.default
        logical_xor.default bitwise_and.Tensor bitwise_or.Tensor bitwise_not.default sign.default
        zeros_like.default ones_like.default full_like.default
        """,
    ),
    **same_rule(CHOICE, "where.self maximum.default minimum.default"),
    **dict.fromkeys(GATES, GATE),
    **{name: CURVE for name, rule in SMOOTH.items() if isinstance(rule, Smooth)},
    **same_rule(PRODUCT, "mul.Tensor mul.Scalar"),
    **same_rule(QUOTIENT, "div.Tensor div.Scalar"),
}
"""The elementwise operations of the freezing table."""
