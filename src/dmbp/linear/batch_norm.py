"""Batch norm whose gradient is right for a single image.

PyTorch's backward pass of batch norm in evaluation mode, on a CPU, is wrong where the gradient
comes as a batch of one in the order of a transpose, strides (C, 1, …), as behind `x.flatten(2).mT`
in the stems of LeViT and others (seen in 2.13; two images are right). A gradient in plain order is
right.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


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


class RightBatchNorm(TorchFunctionMode):
    """While it is entered, a model's batch norms have that gradient."""

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch's function gives."""
        result = func(*args, **(kwargs or {}))
        return _in_order(result) if func is torch.batch_norm else result


def _in_order(normalised: Tensor) -> Tensor:
    apply: Any = InOrder.apply
    return apply(normalised) if normalised.requires_grad and not normalised.is_cuda else normalised
