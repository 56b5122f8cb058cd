"""Operations that pick activations, and operations whose result is decided at x.

A `Choice` picks some of its activations. At x the winner is known, and picking it is linear:

    max-pool(z) = z[winner(x)]              exactly, at x

If candidates are equal the first wins, as in PyTorch's own pooling.

A `Decision` is a comparison, a shape, an index, or a constant with the shape of an activation. It
is piecewise constant in the input, so it is a constant of the linear network. The probabilities of
a softmax, which weigh other values, do change with the input, but are frozen in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.rules.base import Function, OperationCall, Role, Rule, same_rule

aten = torch.ops.aten


@dataclass(frozen=True)
class Choice(Rule):
    """An operation that picks elements; `picker` returns a function that picks the same again."""

    kind = "choice"
    picker: Callable[..., Function]

    def freeze(self, call: OperationCall) -> Function:
        """Return the function that picks the winners at x."""
        return self.picker(*call.arguments, **call.keywords)


@dataclass(frozen=True)
class Gather:
    """Picks elements by their index in the last `dimensions` dimensions, flattened.

    If `with_index`, the index is returned beside the values, as some operations do.
    """

    index: Tensor
    dimensions: int
    with_index: bool = False

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Any:
        """Pick the elements that won at x."""
        flat = activation.flatten(-self.dimensions)
        chosen = flat.gather(-1, self.index.flatten(-self.dimensions)).view(self.index.shape)
        return (chosen, self.index) if self.with_index else chosen


@dataclass(frozen=True)
class GatherAlong:
    """Picks elements by their index along one dimension, and returns the index beside them."""

    index: Tensor
    dimension: int
    keepdim: bool

    def __call__(self, activation: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Pick the elements that won at x."""
        chosen = activation.gather(self.dimension, self.index)
        index = self.index
        if not self.keepdim:
            chosen, index = chosen.squeeze(self.dimension), index.squeeze(self.dimension)
        return chosen, index


@dataclass(frozen=True)
class PickFirst:
    """Picks the first of two activations where it won at x, and the second elsewhere."""

    first_wins: Tensor

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Pick, element by element, the activation that won at x."""
        return torch.where(self.first_wins, first, second)


def _max_pooling(pool: Function, dimensions: int, *, with_index: bool = False) -> Choice:
    def picker(*arguments: Any, **keywords: Any) -> Function:
        return Gather(pool(*arguments, **keywords)[1], dimensions, with_index)

    return Choice(picker)


def _pick_along(best: Function) -> Choice:
    def picker(z: Tensor, dim: int, keepdim: bool = False) -> Function:
        return GatherAlong(best(z, dim=dim, keepdim=True), dim, keepdim)

    return Choice(picker)


def _pick_kth(z: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Function:
    index = aten.kthvalue.default(z, k, dim, True)[1]
    return GatherAlong(index, dim, keepdim)


def _pick_several(best: Function, *, position: int) -> Choice:
    """Return the rule for picking several winners along a dimension.

    The dimension is the argument at `position` after z, or `dim`; by default it is the last one.
    """

    def picker(z: Tensor, *arguments: Any, **keywords: Any) -> Function:
        dimension = arguments[position] if position < len(arguments) else -1
        index = best(z, *arguments, **keywords)[1]
        return GatherAlong(index, keywords.get("dim", dimension), keepdim=True)

    return Choice(picker)


def _pick_over_dimensions(best: Function) -> Choice:
    def picker(z: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Function:
        picked = sorted(d % z.dim() for d in (dim or range(z.dim())))
        kept = [d for d in range(z.dim()) if d not in picked]

        def flatten(activation: Tensor) -> Tensor:
            return activation.permute(*kept, *picked).flatten(len(kept))

        index = best(flatten(z), dim=-1, keepdim=True)
        shape = [1 if d in picked else size for d, size in enumerate(z.shape)]
        shape = shape if keepdim else [z.shape[d] for d in kept]
        return lambda activation, *_, **__: flatten(activation).gather(-1, index).reshape(shape)

    return Choice(picker)


_POOLS = {
    "max_pool1d": (aten.max_pool1d_with_indices.default, 1),
    "max_pool2d": (aten.max_pool2d_with_indices.default, 2),
    "max_pool3d": (aten.max_pool3d_with_indices.default, 3),
}
_ADAPTIVE_POOLS = {
    "adaptive_max_pool1d": (aten.adaptive_max_pool1d.default, 1),
    "adaptive_max_pool2d": (aten.adaptive_max_pool2d.default, 2),
    "adaptive_max_pool3d": (aten.adaptive_max_pool3d.default, 3),
}

CHOICES: Mapping[str, Choice] = {
    **{f"aten.{name}.default": _max_pooling(*pool) for name, pool in _POOLS.items()},
    **{
        f"aten.{name}_with_indices.default": _max_pooling(*pool, with_index=True)
        for name, pool in _POOLS.items()
    },
    **{
        f"aten.{name}.default": _max_pooling(*pool, with_index=True)
        for name, pool in _ADAPTIVE_POOLS.items()
    },
    "aten.max.dim": _pick_along(torch.argmax),
    "aten.min.dim": _pick_along(torch.argmin),
    "aten.median.dim": _pick_along(lambda z, dim, keepdim: z.median(dim, keepdim)[1]),
    "aten.kthvalue.default": Choice(_pick_kth),
    "aten.topk.default": _pick_several(aten.topk.default, position=1),
    "aten.sort.default": _pick_several(aten.sort.default, position=0),
    "aten.sort.stable": _pick_several(aten.sort.stable, position=0),
    "aten.amax.default": _pick_over_dimensions(torch.argmax),
    "aten.amin.default": _pick_over_dimensions(torch.argmin),
    "aten.maximum.default": Choice(lambda a, b: PickFirst(a >= b)),
    "aten.minimum.default": Choice(lambda a, b: PickFirst(a <= b)),
}


@dataclass(frozen=True)
class Decision(Rule):
    """An operation whose result at x is a constant of the linear network."""

    kind = "decision"
    output_role: Role = Role.PLAIN

    def freeze(self, call: OperationCall) -> None:
        """Return None: the result is a constant."""
        return

    def role(self, call: OperationCall) -> Role:
        """Return the constant's role in products."""
        return self.output_role


DECISIONS: Mapping[str, Decision] = {
    **same_rule(
        Decision(),
        """
        sym_size.int _assert_tensor_metadata.default
        gt.Tensor gt.Scalar ge.Tensor ge.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar
        eq.Tensor eq.Scalar ne.Tensor ne.Scalar logical_not.default logical_and.default
        logical_or.default logical_xor.default bitwise_and.Tensor bitwise_or.Tensor
        bitwise_not.default sign.default argmax.default argmin.default isnan.default isinf.default
        zeros_like.default ones_like.default full_like.default empty_like.default
        new_zeros.default new_ones.default new_full.default new_empty.default
        """,
    ),
    # A softmax is not piecewise constant; frozen at x, it leaves attention linear in its values.
    **same_rule(Decision(Role.WEIGHT), "softmax.int _softmax.default _safe_softmax.default"),
}
