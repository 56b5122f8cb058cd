"""Layer, group, instance and RMS norm: the scale is frozen, the mean stays linear.

    norm(z) = (z − mean(z)) · s(x) · weight + bias          s = 1 / √(variance + eps), exactly, at x

Subtracting the mean is linear in z and is kept; only the deviation that is divided by is held as it
is at x. RMS norm subtracts nothing. So the pullback differs from the model's gradient, which also
moves the scale.

Batch norm whose gradient is right for a single image.

PyTorch's backward pass of batch norm in evaluation mode, on a CPU, is wrong where the gradient
comes as a batch of one in the order of a transpose, strides (C, 1, …), as behind `x.flatten(2).mT`
in the stems of LeViT and others (seen in 2.13; two images are right). A gradient in plain order is
right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.base import Function, OperationCall, Place, Role, Rule


@dataclass(frozen=True)
class Scaled:
    """Values less their mean over the last dimension, if `centred`, times x's scale.

    `arrange` brings the elements that are normalised together into the last dimension; `weight` and
    `bias` are shaped to spread over the activation.
    """

    arrange: Callable[[Tensor], Tensor]
    centred: bool
    scale: Tensor
    weight: Tensor | None
    bias: Tensor | None

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """The same scale on another activation."""
        grouped = self.arrange(activation)
        moved = grouped - grouped.mean(-1, keepdim=True) if self.centred else grouped
        scaled = (moved * self.scale).reshape(activation.shape)
        scaled = scaled if self.weight is None else scaled * self.weight
        return scaled if self.bias is None else scaled + self.bias


@dataclass(frozen=True)
class Norm(Rule):
    """A normalisation, given by how its frozen form is read from a call's arguments."""

    kind = "norm"
    frozen: Callable[..., Function]

    def refusal(self, call: OperationCall) -> str | None:
        """Why this call is no normalisation of one activation, or None."""
        alone = call.active == frozenset[Place]({0})
        return None if alone else "its settings depend on the input"

    def role(self, call: OperationCall) -> Role:
        """Plain: it carries."""
        return Role.PLAIN

    def freeze(self, call: OperationCall) -> Function:
        """The activation with the scale of x."""
        return self.frozen(*call.arguments, **call.keywords)


def _scaled(
    z: Tensor,
    arrange: Callable[[Tensor], Tensor],
    *,
    epsilon: float,
    weight: Tensor | None,
    bias: Tensor | None,
    centred: bool = True,
) -> Scaled:
    grouped = arrange(z)
    moved = grouped - grouped.mean(-1, keepdim=True) if centred else grouped
    scale = torch.rsqrt(moved.square().mean(-1, keepdim=True) + epsilon)
    return Scaled(arrange, centred, scale, weight, bias)


def _layer_norm(
    z: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Scaled:
    def arrange(activation: Tensor) -> Tensor:
        return activation.flatten(-len(shape))

    return _scaled(z, arrange, epsilon=eps, weight=weight, bias=bias)


def _rms_norm(
    z: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Scaled:
    def arrange(activation: Tensor) -> Tensor:
        return activation.flatten(-len(shape))

    epsilon = torch.finfo(z.dtype).eps if eps is None else eps
    return _scaled(z, arrange, epsilon=epsilon, weight=weight, bias=None, centred=False)


def _group_norm(
    z: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Scaled:
    def arrange(activation: Tensor) -> Tensor:
        return activation.reshape(activation.shape[0], groups, -1)

    def by_channel(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.view(-1, *(1,) * (z.dim() - 2))

    return _scaled(z, arrange, epsilon=eps, weight=by_channel(weight), bias=by_channel(bias))


def _instance_norm(
    z: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
    use_input_stats: bool = True,
    _momentum: float = 0.1,
    eps: float = 1e-5,
    *_: Any,
) -> Scaled | ElementwiseLine:
    if use_input_stats:
        return _group_norm(z, z.shape[1], weight, bias, eps)
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance + eps) * (1.0 if weight is None else weight)
    shift = (0.0 if bias is None else bias) - mean * scale
    return ElementwiseLine(*(part.view(-1, *(1,) * (z.dim() - 2)) for part in (scale, shift)))


NORMS: Mapping[str, Norm] = {
    "aten.layer_norm.default": Norm(_layer_norm),
    "aten.rms_norm.default": Norm(_rms_norm),
    "aten.group_norm.default": Norm(_group_norm),
    "aten.instance_norm.default": Norm(_instance_norm),
}


class InOrder(torch.autograd.Function):
    """The identity; a gradient that passes is put into plain order."""

    @staticmethod
    def forward(_: Any, activation: Tensor) -> Tensor:
        """The activation itself."""
        return activation.view_as(activation)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient, copied where its order is another."""
        return gradient.contiguous()


def batch_norm(*arguments: Any, **keywords: Any) -> Tensor:
    """`aten.batch_norm` with that gradient."""
    return _in_order(torch.ops.aten.batch_norm.default(*arguments, **keywords))


def smaller_batch_norm(*arguments: Any) -> tuple[Tensor, ...]:
    """The same of the operation that `torch.export` breaks batch norm into."""
    broken_up = torch.ops.aten._native_batch_norm_legit_no_training.default
    normalised, *statistics = broken_up(*arguments)
    return _in_order(normalised), *statistics


class CorrectedBatchNorm(TorchFunctionMode):
    """While it is entered, a model's batch norms have that gradient."""

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch's function gives."""
        result = func(*args, **(kwargs or {}))
        return _in_order(result) if func is torch.batch_norm else result


def _in_order(normalised: Tensor) -> Tensor:
    apply: Any = InOrder.apply
    return apply(normalised) if normalised.requires_grad and not normalised.is_cuda else normalised
