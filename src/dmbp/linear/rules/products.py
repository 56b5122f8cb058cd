"""Products of two values that both depend on the input: one factor is frozen at x, one carries.

    a · b = a · b(x)                        exactly, at x

The graph alone decides which factor is frozen, never the numbers:

- The factor of the higher role (`base.Role`) is frozen: the sigmoid of squeeze-and-excitation, the
  gate of a gated unit, the probabilities of attention.
- If neither is a normaliser or a weight, the factor that is broadcast over the other is frozen, so
  `x · mean(x)` and `x · linear(mean(x))` carry x.
- If sizes and roles are equal, the second factor is frozen; in a matrix product, `q (kᵀ v)`, the
  first.
- The denominator of a quotient is frozen. If only the denominator depends on the input, 1/z is
  replaced by its tangent.

The branch that computes a frozen factor is not part of the linear network, and neither are its
sites. If the frozen factor was an activation or a weight and the other factor was not, the product
is itself an activation, a gated unit, and its output is a site. A mix of values is always a site.
Products inside an activation that is written out, `x · sigmoid(x)`, never get here
(`capture/composite.py`).

Attention is such a mix: the probabilities are frozen at x, and the values carry.

    softmax(q kᵀ · scale + mask) v = P(x) v                 exactly, at x

Queries and keys are then not part of the linear network. Attention that a model writes out is
frozen in the same way: its softmax is a weight with a fixed value (`choices.py`), and the matrix
product after it carries the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.lines import ElementwiseLine, tangent
from dmbp.linear.rules.base import ArgumentKey, Function, OperationCall, Role, Rule


@dataclass(frozen=True)
class Product(Rule):
    """An operation that is linear in each of two factors.

    `factors` are their positions; `is_weighted_sum` says that it sums over products.
    """

    kind = "product"
    factors: tuple[int, int] = (0, 1)
    is_weighted_sum: bool = False

    def freeze(self, call: OperationCall) -> Function:
        """Return the operation itself; one factor is a constant."""
        return call.function

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return one factor if both are active."""
        if not call.active.issuperset(self.factors):
            return frozenset()
        return frozenset({self._factor_to_freeze(call)})

    def is_site(self, call: OperationCall) -> bool:
        """Return whether a gate scales a value that is plain, or mixes values of any role."""
        carrying, frozen = self._carrying_and_frozen(call)
        is_new = self.is_weighted_sum or call.roles.get(carrying) == Role.PLAIN
        return _is_gate(call, frozen) and is_new

    def role(self, call: OperationCall) -> Role:
        """Return the carrying factor's role, or an activation's if the product is a site.

        A mix of values is plain, so that it carries on: q (softmax(k)ᵀ v) is linear in v.
        """
        if self.is_weighted_sum:
            return Role.PLAIN
        carrying, _ = self._carrying_and_frozen(call)
        return Role.ACTIVATION if self.is_site(call) else call.roles.get(carrying, Role.PLAIN)

    def _carrying_and_frozen(self, call: OperationCall) -> tuple[int, int]:
        """Return the positions of the factor that carries and of the other."""
        first, second = self.factors
        if call.active.issuperset(self.factors):
            frozen = self._factor_to_freeze(call)
            return (second if frozen == first else first), frozen
        carries_second = second in call.active or (not call.active and second in call.roles)
        return (second, first) if carries_second else (first, second)

    def _factor_to_freeze(self, call: OperationCall) -> int:
        """Return the position of the factor to freeze when both are active."""
        first, second = self.factors
        roles = [call.roles[factor] for factor in self.factors]
        sizes = [call.arguments[factor].numel() for factor in self.factors]
        is_broadcast = not self.is_weighted_sum and sizes[0] != sizes[1]
        if roles[0] != roles[1] and (max(roles) >= Role.WEIGHT or not is_broadcast):
            return first if roles[0] > roles[1] else second
        if self.is_weighted_sum:
            return first
        return first if sizes[0] < sizes[1] else second


@dataclass(frozen=True)
class Quotient(Rule):
    """A division, whose denominator is frozen."""

    kind = "product"

    def freeze(self, call: OperationCall) -> Function:
        """Return the operation itself, or the numerator times the tangent of 1/z."""
        if 0 in call.active:
            return call.function
        return FrozenReciprocal(tangent(torch.reciprocal, call.arguments[1]))

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return the denominator if both arguments are active."""
        return frozenset({1}) if call.active >= {0, 1} else frozenset()

    def is_site(self, call: OperationCall) -> bool:
        """Return whether the quotient is an activation, such as a / (1 + |b|)."""
        return _is_gate(call, 1) and call.roles.get(0) == Role.PLAIN

    def role(self, call: OperationCall) -> Role:
        """Return the numerator's role; the reciprocal of an activation is a normaliser."""
        return Role.ACTIVATION if self.is_site(call) else call.roles.get(0, Role.NORMALISER)


@dataclass(frozen=True)
class FrozenReciprocal:
    """A constant divided by an activation, by the tangent of 1/z."""

    line: ElementwiseLine

    def __call__(self, numerator: Tensor | float, z: Tensor) -> Tensor:
        """Multiply the constant with the tangent at another activation."""
        return numerator * self.line(z)


def _is_gate(call: OperationCall, position: int) -> bool:
    return call.roles.get(position) in (Role.ACTIVATION, Role.WEIGHT)


VALUES = 2
"""The position of the values among the arguments of `scaled_dot_product_attention`."""


@dataclass(frozen=True)
class Attention(Rule):
    """`scaled_dot_product_attention`."""

    kind = "product"

    def freeze(self, call: OperationCall) -> Function | None:
        """Return the mix by the probabilities at x; None if the values are constant."""
        if VALUES not in call.active:
            return None
        query, key, values, *rest = call.arguments
        # Attention to unit vectors returns its probabilities, with the mask and scale applied.
        units = torch.eye(key.shape[-2], dtype=values.dtype, device=values.device)
        units = units.expand(*values.shape[:-2], *units.shape).contiguous()
        probabilities = call.function(query, key, units, *rest, **call.keywords)
        is_grouped = bool(call.keywords.get("enable_gqa", False))
        repeats = query.shape[-3] // values.shape[-3] if is_grouped else 1
        return FrozenAttention(probabilities, repeats)

    def refusal(self, call: OperationCall) -> str | None:
        """Return a reason if the attention has dropout."""
        return "it is random" if call.argument(4, "dropout_p", 0.0) else None

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return queries, keys and the mask."""
        return call.active - {VALUES}

    def is_site(self, call: OperationCall) -> bool:
        """Return True: a mix of values is a site."""
        return True

    def role(self, call: OperationCall) -> Role:
        """Return that the mix is plain: it carries on."""
        return Role.PLAIN


@dataclass(frozen=True)
class FrozenAttention:
    """Values mixed by fixed probabilities (…, queries, keys).

    `repeats` heads of queries share one head of values.
    """

    probabilities: Tensor
    repeats: int

    def __call__(self, query: Any, key: Any, values: Tensor, *_: object, **__: object) -> Tensor:
        """Mix other values."""
        shared = values.repeat_interleave(self.repeats, -3) if self.repeats > 1 else values
        return self.probabilities @ shared


PRODUCTS: Mapping[str, Rule] = {
    "aten.mul.Tensor": Product(),
    "aten.mul.Scalar": Product(),
    "aten.matmul.default": Product(is_weighted_sum=True),
    "aten.mm.default": Product(is_weighted_sum=True),
    "aten.bmm.default": Product(is_weighted_sum=True),
    "aten.addmm.default": Product((1, 2), is_weighted_sum=True),
    "aten.baddbmm.default": Product((1, 2), is_weighted_sum=True),
    "aten.bilinear.default": Product(is_weighted_sum=True),
    "aten.div.Tensor": Quotient(),
    "aten.div.Scalar": Quotient(),
    "aten.scaled_dot_product_attention.default": Attention(),
}
