"""Guided backpropagation: the gradient, of which only the positive part passes each activation.

    >>> GuidedBackprop(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

Springenberg et al., "Striving for Simplicity: The All Convolutional Net", ICLR workshop 2015. A
rule at the sites of the linear network, so it holds for functional and reused activations alike.
"""

from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod, Question
from dmbp.errors import CaptureError
from dmbp.linear import Site
from dmbp.linear.network import NO_SITES


class _PositiveGradient(torch.autograd.Function):
    """The identity; going back, negative gradients are held."""

    @staticmethod
    def forward(ctx: Any, activation: Tensor) -> Tensor:
        """Pass the activation on."""
        return activation.view_as(activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Pass the positive part back."""
        return gradients[0].clamp(min=0)


def _rectified(_: Site, streams: list[Tensor]) -> list[Tensor]:
    return [_PositiveGradient.apply(stream) for stream in streams]


class GuidedBackprop(LinearMapMethod):
    """The gradient with negative parts held at every activation."""

    def linear_map(self, question: Question) -> Tensor:
        """The guided gradient of some rows."""
        net = self.network(question)
        if not net.sites:
            raise CaptureError(NO_SITES)
        return net.pullback_through(_rectified)
