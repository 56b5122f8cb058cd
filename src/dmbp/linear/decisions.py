"""Comparisons, shapes, constants made in the shape of an activation: values decided at x.

They are piecewise constant in the input, so the linear network holds the value they have at x. So
are the probabilities of a softmax, which weigh other values: they are not constant, but frozen.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dmbp.linear.role import Role
from dmbp.linear.rule import Call, Rule


@dataclass(frozen=True)
class Decision(Rule):
    """An operation whose result at x is a constant of the linear network."""

    kind = "decision"
    made: Role = Role.PLAIN

    def role(self, call: Call) -> Role:
        """What the constant is to those it is multiplied with."""
        return self.made

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

# A softmax is no step function, but a weight: held at x, it leaves attention linear in its values.
_WEIGHTS = """
    softmax.int _softmax.default _safe_softmax.default
"""

DECISIONS: Mapping[str, Decision] = {
    **{f"aten.{name}": Decision() for name in _NAMES.split()},
    **{f"aten.{name}": Decision(Role.WEIGHT) for name in _WEIGHTS.split()},
}
