"""Guided backpropagation: the gradient, of which each activation passes only the positive part.

    >>> GuidedBackprop(model).attribute(images, target=3).shape
    torch.Size([1, 3, 8, 8])

The rule is applied at the sites of the linear network, so functional and reused activations are
covered too. Guided GradCAM multiplies the result by GradCAM's regions.

Springenberg et al., "Striving for Simplicity: The All Convolutional Net", ICLR workshop 2015.
Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import LinearMapMethod
from dmbp.attribution.gradcam import GradCAM, warn_if_zero
from dmbp.baseline import Baseline
from dmbp.errors import CaptureError
from dmbp.linear import Question, Site
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.linear.network import NO_SITES


class _PositiveGradient(torch.autograd.Function):
    """The identity; in the backward pass, negative gradients become zero."""

    @staticmethod
    def forward(ctx: Any, activation: Tensor) -> Tensor:
        """Return the activation unchanged."""
        return activation.view_as(activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the positive part of the gradient."""
        return gradients[0].clamp(min=0)


def _rectified(_: Site, streams: list[Tensor]) -> list[Tensor]:
    return [_PositiveGradient.apply(stream) for stream in streams]


class GuidedBackprop(LinearMapMethod):
    """The gradient with its negative part removed at every activation.

    Args:
        model: The model to explain.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        generator: Not used by this method.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def linear_map(self, question: Question) -> Tensor:
        """Return the guided gradient for each row."""
        net = question.network()
        if not net.sites:
            raise CaptureError(NO_SITES)
        return net.pullback_through(_rectified)


class GuidedGradCAM(LinearMapMethod):
    """The product of guided backpropagation's map and GradCAM's.

    Args:
        model: The model to explain.
        layer: The name of the module that GradCAM uses; None takes the last stage.
        reference: What pixels are compared with: None or "zero", "blur", "mean" or a tensor.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Attributes:
        used_layer: The layer of the last call, with its height and width; None before the first.
    """

    def __init__(
        self,
        model: Model,
        *,
        layer: str | None = None,
        reference: Baseline = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, reference=reference, output=output)
        self._guided = GuidedBackprop(model)
        self._regions = GradCAM(model, layer=layer)

    def linear_map(self, question: Question) -> Tensor:
        """Return the guided gradient for each row, weighted by region."""
        regions = self._regions.answer(question)
        self.used_layer = self._regions.used_layer
        maps = self._guided.linear_map(question) * regions
        if regions.flatten(1).any(1).all():  # or else GradCAM has warned already
            reason = "no positive gradient reaches the regions that GradCAM shows"
            warn_if_zero(maps, "guided GradCAM's map", reason)
        return maps
