"""Products of two values that both depend on the input: one factor is frozen at x, one carries.

    a · b = a · b(x)                        exactly, at x

Which one is decided by the graph alone, never by the numbers: the one of the higher role
(`role.py`: normaliser, weight, activation, plain), so a squeeze-and-excitation's sigmoid, a gated
unit's gate, attention's probabilities. Where neither is a normaliser or a weight, the factor that
is spread over the other, so `x · mean(x)` carries x and `x · linear(mean(x))` too; of equal sizes
and roles the second, and of a matrix product, `q (kᵀ v)`, the first.
A quotient's denominator is frozen; where it alone depends on the input, 1/z is taken by its
tangent. The branch that made a frozen factor is no part of the linear network, nor are its sites.

Where the frozen factor was an activation or a weight and the other was none, the product is itself
an activation, a gated unit: its output is a site. So is a mix of values, whatever the values were,
as attention's is. Products inside an activation that is written out, `x · sigmoid(x)`, never get
here (`regions.py`).

Attention: the probabilities are frozen at x, the values carry.

    softmax(q kᵀ · scale + mask) v = P(x) v                 exactly, at x

So queries and keys are no part of the linear network, and their branches drop out. The mix of
values is a site. Attention that a model spells out is frozen the same way: a softmax is a weight
held at x (`decisions.py`) and the product after it carries the values (`products.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.lines import ElementwiseLine, tangent
from dmbp.linear.rules.base import Function, OperationCall, Place, Role, Rule


@dataclass(frozen=True)
class Product(Rule):
    """An operation linear in each of two factors; `mixes` where it sums over products."""

    kind = "product"
    factors: tuple[int, int] = (0, 1)
    mixes: bool = False

    def held(self, call: OperationCall) -> frozenset[Place]:
        """One factor, where both are active."""
        if not call.active.issuperset(self.factors):
            return frozenset()
        return frozenset({self._weaker(call)})

    def masks(self, call: OperationCall) -> bool:
        """Whether an activation or a weight was frozen, and what carries is none or is mixed."""
        carried, frozen = self._parts(call)
        is_new = self.mixes or call.roles.get(carried) == Role.PLAIN
        return _is_gate(call, frozen) and is_new

    def role(self, call: OperationCall) -> Role:
        """That of the factor that carries; an activation's where the product is one.

        A mix of values is plain, so that it carries on: q (softmax(k)ᵀ v) is linear in v.
        """
        if self.mixes:
            return Role.PLAIN
        carried = call.roles.get(self._parts(call)[0], Role.PLAIN)
        return Role.ACTIVATION if self.masks(call) else carried

    def freeze(self, call: OperationCall) -> Function:
        """The operation itself, with one factor held."""
        return call.function

    def _parts(self, call: OperationCall) -> tuple[int, int]:
        """The factor that carries and the other."""
        first, second = self.factors
        if call.active.issuperset(self.factors):
            weaker = self._weaker(call)
            return (second if weaker == first else first), weaker
        carries_second = second in call.active or (not call.active and second in call.roles)
        return (second, first) if carries_second else (first, second)

    def _weaker(self, call: OperationCall) -> int:
        """The factor to freeze."""
        first, second = self.factors
        roles = [call.roles[factor] for factor in self.factors]
        sizes = [call.arguments[factor].numel() for factor in self.factors]
        is_spread = not self.mixes and sizes[0] != sizes[1]
        if roles[0] != roles[1] and (max(roles) >= Role.WEIGHT or not is_spread):
            return first if roles[0] > roles[1] else second
        if self.mixes:
            return first
        return first if sizes[0] < sizes[1] else second


@dataclass(frozen=True)
class Quotient(Rule):
    """A division, of which the denominator is frozen."""

    kind = "product"

    def held(self, call: OperationCall) -> frozenset[Place]:
        """The denominator."""
        return frozenset({1}) if call.active >= {0, 1} else frozenset()

    def masks(self, call: OperationCall) -> bool:
        """Whether it is an activation, as a / (1 + |b|) is."""
        return _is_gate(call, 1) and call.roles.get(0) == Role.PLAIN

    def role(self, call: OperationCall) -> Role:
        """That of the numerator; a reciprocal normalises."""
        return Role.ACTIVATION if self.masks(call) else call.roles.get(0, Role.NORMALISER)

    def freeze(self, call: OperationCall) -> Function:
        """The operation itself, or its numerator times the tangent of 1/z."""
        if 0 in call.active:
            return call.function
        return Reciprocal(tangent(torch.reciprocal, call.arguments[1]))


@dataclass(frozen=True)
class Reciprocal:
    """A constant over an activation, by the tangent of 1/z."""

    piece: ElementwiseLine

    def __call__(self, numerator: Tensor | float, z: Tensor) -> Tensor:
        """The constant times the tangent."""
        return numerator * self.piece(z)


def _is_gate(call: OperationCall, place: int) -> bool:
    return call.roles.get(place) in (Role.ACTIVATION, Role.WEIGHT)


PRODUCTS: Mapping[str, Rule] = {
    "aten.mul.Tensor": Product(),
    "aten.mul.Scalar": Product(),
    "aten.matmul.default": Product(mixes=True),
    "aten.mm.default": Product(mixes=True),
    "aten.bmm.default": Product(mixes=True),
    "aten.addmm.default": Product((1, 2), mixes=True),
    "aten.baddbmm.default": Product((1, 2), mixes=True),
    "aten.bilinear.default": Product(mixes=True),
    "aten.div.Tensor": Quotient(),
    "aten.div.Scalar": Quotient(),
}


VALUES = 2
"""Where `scaled_dot_product_attention` has them."""


@dataclass(frozen=True)
class Mix:
    """Values mixed by probabilities (…, queries, keys); `repeats` queries share a head's values."""

    probabilities: Tensor
    repeats: int

    def __call__(self, query: Any, key: Any, values: Tensor, *_: object, **__: object) -> Tensor:
        """The same mix of other values."""
        shared = values.repeat_interleave(self.repeats, -3) if self.repeats > 1 else values
        return self.probabilities @ shared


@dataclass(frozen=True)
class Attention(Rule):
    """`scaled_dot_product_attention`."""

    kind = "product"

    def refusal(self, call: OperationCall) -> str | None:
        """Random attention cannot be held."""
        return "it is random" if call.argument(4, "dropout_p", 0.0) else None

    def held(self, call: OperationCall) -> frozenset[Place]:
        """Queries, keys and the mask."""
        return call.active - {VALUES}

    def masks(self, call: OperationCall) -> bool:
        """The mix of values is a site."""
        return True

    def role(self, call: OperationCall) -> Role:
        """Plain: the values carry on."""
        return Role.PLAIN

    def freeze(self, call: OperationCall) -> Function | None:
        """The probabilities at x; where values do not depend on it the result is a constant."""
        if VALUES not in call.active:
            return None
        query, key, values, *rest = call.arguments
        # What attention makes of the unit vectors are its probabilities, mask and scale included.
        units = torch.eye(key.shape[-2], dtype=values.dtype, device=values.device)
        units = units.expand(*values.shape[:-2], *units.shape).contiguous()
        probabilities = call.function(query, key, units, *rest, **call.keywords)
        repeats = query.shape[-3] // values.shape[-3] if self._shares(call) else 1
        return Mix(probabilities, repeats)

    def _shares(self, call: OperationCall) -> bool:
        return bool(call.keywords.get("enable_gqa", False))


ATTENTION: Mapping[str, Attention] = {
    "aten.scaled_dot_product_attention.default": Attention(),
}
