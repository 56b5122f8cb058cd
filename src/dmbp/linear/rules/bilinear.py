"""Rules that keep both factors of a product, half each, and softmax as its tangent.

    a · b             →  ½ a · b(x) + ½ a(x) · b            exactly, at x
    softmax(s)        →  P + P ⊙ (ds − Σ P ⊙ ds)            P = softmax(s(x)), ds = s − s(x)
    softmax(q kᵀ) v   →  ½ P v + ½ softmax(½ q k(x)ᵀ + ½ q(x) kᵀ) v(x)

The products of `products.py` freeze one factor, so that attention is linear in its values alone.
Here queries and keys are part of the linear network too. Relevance that passes through such a
network is that of AttnLRP (`attribution/lrp.py`). Factors that normalise (the deviation of a norm,
the denominator of a quotient) are frozen as before.

Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML
2024: Eq. 13 (softmax) and Eq. 15 (products).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.rules.base import (
    ArgumentKey,
    Function,
    OperationCall,
    Role,
    Rule,
    refuse_active_settings,
    same_rule,
)
from dmbp.linear.rules.products import PRODUCTS, VALUES, Attention, FrozenAttention, Product


@dataclass(frozen=True)
class HalfProduct(Product):
    """A product of two activations that stays linear in each, half each."""

    def freeze(self, call: OperationCall) -> Function:
        """Return half the product with either factor frozen, or the operation itself."""
        if self._keeps(call):
            return Halves(call.function, tuple(call.arguments), self.factors)
        return super().freeze(call)

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return the factor to freeze, if there is one."""
        return frozenset() if self._keeps(call) else super().frozen_arguments(call)

    def _keeps(self, call: OperationCall) -> bool:
        roles = [call.roles.get(factor) for factor in self.factors]
        return call.active.issuperset(self.factors) and Role.NORMALISER not in roles


@dataclass(frozen=True)
class Halves:
    """Half a product with each of its factors frozen at x."""

    function: Function
    at_x: tuple[Any, ...]
    factors: tuple[int, int]

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Evaluate both halves at other activations."""
        halves = [
            self.function(
                *(self.at_x[k] if k == frozen else own for k, own in enumerate(arguments)),
                **keywords,
            )
            for frozen in self.factors
        ]
        return (halves[0] + halves[1]) / 2


@dataclass(frozen=True)
class SoftmaxTangent:
    """The tangent of a softmax along one dimension."""

    scores: Tensor
    probabilities: Tensor
    dim: int

    def __call__(self, scores: Tensor, *_: object, **__: object) -> Tensor:
        """Evaluate the tangent at other scores."""
        # A score of -inf is one that a mask has left out: its probability is zero.
        change = torch.where(self.scores.isfinite(), scores - self.scores, 0)
        weighted = self.probabilities * change.to(self.probabilities)
        mean = weighted.sum(self.dim, keepdim=True)
        return self.probabilities + weighted - self.probabilities * mean


@dataclass(frozen=True)
class TangentOfSoftmax(Rule):
    """A softmax, which is replaced by its tangent."""

    kind = "smooth"

    def freeze(self, call: OperationCall) -> Function:
        """Return the tangent at x."""
        probabilities = call.function(*call.arguments, **call.keywords)
        return SoftmaxTangent(call.arguments[0], probabilities, int(call.argument(1, "dim", -1)))

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this call is not a function of one activation, or None."""
        return refuse_active_settings(call)

    def role(self, call: OperationCall) -> Role:
        """Return a weight's role."""
        return Role.WEIGHT


@dataclass(frozen=True)
class BilinearAttention(Attention):
    """`scaled_dot_product_attention` that stays linear in queries, keys and values."""

    def freeze(self, call: OperationCall) -> Function:
        """Return half the attention with fixed probabilities, and half with fixed values."""
        query, key, values = call.arguments[:3]
        scale = call.keywords.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
        return AttentionHalves(query, key, values, self.with_probabilities(call), scale)

    def frozen_arguments(self, call: OperationCall) -> frozenset[ArgumentKey]:
        """Return the active arguments that keep their value at x: the mask."""
        return call.active - {0, 1, VALUES}


@dataclass(frozen=True)
class AttentionHalves:
    """Half an attention with its probabilities at x, and half with its values at x."""

    query: Tensor
    key: Tensor
    values: Tensor
    frozen: FrozenAttention
    scale: float

    def __call__(self, query: Tensor, key: Tensor, values: Tensor, *_: object, **__: Any) -> Tensor:
        """Evaluate both halves at other activations."""
        at_x = self._scores(self.query, self.key)
        scores = (self._scores(query, self.key) + self._scores(self.query, key)) / 2
        probabilities = SoftmaxTangent(at_x, self.frozen.probabilities, -1)(scores)
        mixed = probabilities @ self.frozen.for_each_query(self.values)
        return (self.frozen(query, key, values) + mixed) / 2

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ self.frozen.for_each_query(key).transpose(-1, -2) * self.scale


BILINEAR: Mapping[str, Rule] = {
    **{
        name: HalfProduct(rule.factors, rule.is_weighted_sum)
        for name, rule in PRODUCTS.items()
        if isinstance(rule, Product)
    },
    **same_rule(TangentOfSoftmax(), "softmax.int _softmax.default _safe_softmax.default"),
    "aten.scaled_dot_product_attention.default": BilinearAttention(),
}
"""The rules that replace those of the freezing table."""
