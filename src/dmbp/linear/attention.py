"""Attention: the probabilities are frozen at x, the values carry.

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

from dmbp.linear.role import Role
from dmbp.linear.rule import Call, Function, Place, Rule

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

    def refusal(self, call: Call) -> str | None:
        """Random attention cannot be held."""
        return "it is random" if call.argument(4, "dropout_p", 0.0) else None

    def held(self, call: Call) -> frozenset[Place]:
        """Queries, keys and the mask."""
        return call.active - {VALUES}

    def masks(self, call: Call) -> bool:
        """The mix of values is a site."""
        return True

    def role(self, call: Call) -> Role:
        """Plain: the values carry on."""
        return Role.PLAIN

    def freeze(self, call: Call) -> Function | None:
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

    def _shares(self, call: Call) -> bool:
        return bool(call.keywords.get("enable_gqa", False))


ATTENTION: Mapping[str, Attention] = {
    "aten.scaled_dot_product_attention.default": Attention(),
}
