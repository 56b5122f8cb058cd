"""Layer, group, instance and RMS norm, and a batch norm with a correct gradient.

    norm(z) = (z − mean(z)) · s(x) · weight + bias          s = 1 / √(variance + eps), exactly, at x

Subtracting the mean is linear in z and is kept; only the deviation in the denominator keeps its
value at x. RMS norm subtracts nothing. The pullback therefore differs from the model's gradient,
which also counts how the scale changes.

Batch norm in evaluation mode is affine (`affine.py`). On a CPU, PyTorch's backward pass for it is
wrong if the gradient is a batch of one with the strides of a transpose, (C, 1, …), as after
`x.flatten(2).mT` in the stems of LeViT and others (seen in PyTorch 2.13; a batch of two is right).
It is right for a contiguous gradient, so the functions here make the gradient contiguous.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.base import Function, OperationCall, Role, Rule, refuse_active_settings


@dataclass(frozen=True)
class FrozenNorm:
    """A norm with a constant scale; if `centred`, it subtracts the mean over the last dimension.

    `arrange` reshapes the activation so that elements normalised together form the last dimension.
    `weight` and `bias` broadcast over the activation.
    """

    arrange: Callable[[Tensor], Tensor]
    centred: bool
    scale: Tensor
    weight: Tensor | None
    bias: Tensor | None

    def __call__(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """Apply the same scale to another activation."""
        grouped = self.arrange(activation)
        moved = grouped - grouped.mean(-1, keepdim=True) if self.centred else grouped
        scaled = (moved * self.scale).reshape(activation.shape)
        scaled = scaled if self.weight is None else scaled * self.weight
        return scaled if self.bias is None else scaled + self.bias


@dataclass(frozen=True)
class Norm(Rule):
    """A normalisation; `frozen_form` returns its linear function from the call's arguments."""

    kind = "norm"
    frozen_form: Callable[..., Function]

    def freeze(self, call: OperationCall) -> Function:
        """Return the norm with the scale at x."""
        return self.frozen_form(*call.arguments, **call.keywords)

    def refusal(self, call: OperationCall) -> str | None:
        """Return why this call does not normalise one activation, or None."""
        return refuse_active_settings(call)

    def role(self, call: OperationCall) -> Role:
        """Return `Role.PLAIN`: products stay linear in the output."""
        return Role.PLAIN


def _frozen_norm(
    z: Tensor,
    arrange: Callable[[Tensor], Tensor],
    *,
    epsilon: float,
    weight: Tensor | None,
    bias: Tensor | None,
    centred: bool = True,
) -> FrozenNorm:
    grouped = arrange(z)
    moved = grouped - grouped.mean(-1, keepdim=True) if centred else grouped
    scale = torch.rsqrt(moved.square().mean(-1, keepdim=True) + epsilon)
    return FrozenNorm(arrange, centred, scale, weight, bias)


def _layer_norm(
    z: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> FrozenNorm:
    def arrange(activation: Tensor) -> Tensor:
        return activation.flatten(-len(shape))

    return _frozen_norm(z, arrange, epsilon=eps, weight=weight, bias=bias)


def _rms_norm(
    z: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> FrozenNorm:
    def arrange(activation: Tensor) -> Tensor:
        return activation.flatten(-len(shape))

    epsilon = torch.finfo(z.dtype).eps if eps is None else eps
    return _frozen_norm(z, arrange, epsilon=epsilon, weight=weight, bias=None, centred=False)


def _group_norm(
    z: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> FrozenNorm:
    def arrange(activation: Tensor) -> Tensor:
        return activation.reshape(activation.shape[0], groups, -1)

    def by_channel(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.view(-1, *(1,) * (z.dim() - 2))

    return _frozen_norm(z, arrange, epsilon=eps, weight=by_channel(weight), bias=by_channel(bias))


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
) -> FrozenNorm | ElementwiseLine:
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


class ContiguousGradient(torch.autograd.Function):
    """The identity, which makes its gradient contiguous."""

    @staticmethod
    def forward(_: Any, activation: Tensor) -> Tensor:
        """Return the activation."""
        return activation.view_as(activation)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradient, copied if it is not contiguous."""
        return gradient.contiguous()


def batch_norm(*arguments: Any, **keywords: Any) -> Tensor:
    """Apply `aten.batch_norm` with a correct gradient."""
    return _with_contiguous_gradient(torch.ops.aten.batch_norm.default(*arguments, **keywords))


def decomposed_batch_norm(*arguments: Any) -> tuple[Tensor, ...]:
    """Apply the operation that batch norm decomposes into, with a correct gradient."""
    operation = torch.ops.aten._native_batch_norm_legit_no_training.default
    normalised, *statistics = operation(*arguments)
    return _with_contiguous_gradient(normalised), *statistics


class CorrectedBatchNorm(TorchFunctionMode):
    """A context in which the batch norms that a model calls have a correct gradient."""

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and correct the gradient if it is batch norm."""
        result = func(*args, **(kwargs or {}))
        return _with_contiguous_gradient(result) if func is torch.batch_norm else result


def _with_contiguous_gradient(normalised: Tensor) -> Tensor:
    apply: Any = ContiguousGradient.apply
    return apply(normalised) if normalised.requires_grad and not normalised.is_cuda else normalised
