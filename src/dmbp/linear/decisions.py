"""Comparisons, shapes, constants made in the shape of an activation: values decided at x.

They are piecewise constant in the input, so the linear network holds the value they have at x.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dmbp.linear.rule import Call


@dataclass(frozen=True)
class Decision:
    """An operation whose result at x is a constant of the linear network."""

    kind: str = "decision"
    masked: bool = False

    def refusal(self, call: Call) -> str | None:
        """A decision can always be held."""
        return None

    def freeze(self, call: Call) -> None:
        """Nothing to compute later."""
        return


_NAMES = """
    sym_size.int _assert_tensor_metadata.default
    gt.Tensor gt.Scalar ge.Tensor ge.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
    eq.Tensor eq.Scalar ne.Tensor ne.Scalar logical_not.default logical_and.default
    logical_or.default logical_xor.default bitwise_and.Tensor bitwise_or.Tensor bitwise_not.default
    sign.default argmax.default argmin.default isnan.default isinf.default
    zeros_like.default ones_like.default full_like.default empty_like.default
    new_zeros.default new_ones.default new_full.default new_empty.default
"""

DECISIONS: Mapping[str, Decision] = {f"aten.{name}": Decision() for name in _NAMES.split()}
