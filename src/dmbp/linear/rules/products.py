"""Products of two values that both depend on the input: one factor is frozen at x.

    a · b = a · b(x)                        exactly, at x

The product stays linear in the other factor. The graph alone decides which factor is frozen: its
roles (`base.Role`) and sizes, never the numbers. The first rule that applies decides:

1. If the roles differ and the higher one is a weight or a normaliser, that factor is frozen: the
   sigmoid of squeeze-and-excitation, the probabilities of attention.
2. In an elementwise product of different sizes, the smaller factor is frozen, so `x · mean(x)` and
   `x · linear(mean(x))` stay linear in x.
3. If the roles differ, the factor of the higher role is frozen: the gate of a gated unit.
4. Otherwise the second factor is frozen, or the first in a matrix product such as `q (kᵀ v)`.

The denominator of a quotient is frozen. If the numerator is constant, 1/z is replaced by its
tangent.

The branch that computes a frozen factor is not part of the linear network, and neither are its
sites. If the frozen factor is an activation or a weight, the output is a site in two cases: in an
elementwise product or a quotient whose other factor is plain, which is a gated unit, and in every
matrix product, which mixes the other factor's values. A product of two plain values has no site.
Products inside an activation that is written out, `x · sigmoid(x)`, never get here
(`capture/composite.py`).

Attention is such a mix, and its output is a site: the probabilities are frozen at x, and the result
stays linear in the values.

    softmax(q kᵀ · scale + mask) v = P(x) v                 exactly, at x

Queries and keys are then not part of the linear network. Attention that a model writes out is
frozen in the same way: its softmax is a weight with a fixed value (`choices.py`), and the matrix
product after it stays linear in the values.
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

    `factors` are their positions; `is_weighted_sum` says that the operation sums over products.
    """

    kind = "product"
    factors: tuple[int, int] = (0, 1)
    is_weighted_sum: bool = False

    def freeze(self, call: OperationCall) -> Function:
        """Return the operation itself, which is linear once one factor is constant."""
        return call.function

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return the factor to freeze if both are active."""
        if not call.active.issuperset(self.factors):
            return frozenset()
        return frozenset({self._factor_to_freeze(call)})

    def is_site(self, call: OperationCall) -> bool:
        """Return whether a gate scales a plain value, or mixes values of any role."""
        linear, frozen = self._linear_and_frozen(call)
        is_maskable = self.is_weighted_sum or call.roles.get(linear) == Role.PLAIN
        return _is_gate(call, frozen) and is_maskable

    def role(self, call: OperationCall) -> Role:
        """Return the role of the factor that is not frozen, or an activation's at a site.

        A mix of values is plain, so that later products stay linear in it: q (softmax(k)ᵀ v) is
        linear in v.
        """
        if self.is_weighted_sum:
            return Role.PLAIN
        linear, _ = self._linear_and_frozen(call)
        return Role.ACTIVATION if self.is_site(call) else call.roles.get(linear, Role.PLAIN)

    def _linear_and_frozen(self, call: OperationCall) -> tuple[int, int]:
        """Return the position of the factor in which the product stays linear, and the other's."""
        first, second = self.factors
        if call.active.issuperset(self.factors):
            frozen = self._factor_to_freeze(call)
            return (second if frozen == first else first), frozen
        is_second = second in call.active or (not call.active and second in call.roles)
        return (second, first) if is_second else (first, second)

    def _factor_to_freeze(self, call: OperationCall) -> int:
        """Return the position of the factor to freeze if both are active."""
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
    """A constant divided by an activation, with 1/z replaced by its tangent."""

    line: ElementwiseLine

    def __call__(self, numerator: Tensor | float, z: Tensor) -> Tensor:
        """Multiply the constant by the tangent's value at another activation."""
        return numerator * self.line(z)


def _is_gate(call: OperationCall, position: int) -> bool:
    return call.roles.get(position) in (Role.ACTIVATION, Role.WEIGHT)


VALUES = 2
"""The position of the values among the arguments of `scaled_dot_product_attention`."""


@dataclass(frozen=True)
class Attention(Rule):
    """`scaled_dot_product_attention`, whose probabilities are frozen."""

    kind = "product"

    def freeze(self, call: OperationCall) -> Function | None:
        """Return the attention with its probabilities at x; None if the values are constant."""
        return self.with_probabilities(call) if VALUES in call.active else None

    def with_probabilities(self, call: OperationCall) -> "FrozenAttention":
        """Return the attention with its probabilities at x."""
        query, key, values, *rest = call.arguments
        # With the identity matrix as its values, attention returns its probabilities, with the mask
        # and the scale applied.
        identity = torch.eye(key.shape[-2], dtype=values.dtype, device=values.device)
        identity = identity.expand(*values.shape[:-2], *identity.shape).contiguous()
        probabilities = call.function(query, key, identity, *rest, **call.keywords)
        is_grouped = bool(call.keywords.get("enable_gqa", False))
        repeats = query.shape[-3] // values.shape[-3] if is_grouped else 1
        return FrozenAttention(probabilities, repeats)

    def refusal(self, call: OperationCall) -> str | None:
        """Return a reason if the attention has dropout, or None."""
        return "it is random" if call.argument(4, "dropout_p", 0.0) else None

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return all active arguments but the values: queries, keys and the mask."""
        return call.active - {VALUES}

    def is_site(self, call: OperationCall) -> bool:
        """Return True: a mix of values is a site."""
        return True

    def role(self, call: OperationCall) -> Role:
        """Return `Role.PLAIN`, so that later products stay linear in the mix."""
        return Role.PLAIN


@dataclass(frozen=True)
class FrozenAttention:
    """Values mixed by fixed probabilities (…, queries, keys).

    `repeats` heads of queries share one head of values.
    """

    probabilities: Tensor
    repeats: int

    def __call__(self, query: Any, key: Any, values: Tensor, *_: object, **__: object) -> Tensor:
        """Mix other values by the same probabilities."""
        return self.probabilities @ self.for_each_query(values)

    def for_each_query(self, shared: Tensor) -> Tensor:
        """Return keys or values with one head for each head of queries."""
        return shared.repeat_interleave(self.repeats, -3) if self.repeats > 1 else shared


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
