"""Algorithm 1 taken literally, for any captured network: what fast engines are measured against.

Both terms by a masked *backward* pass, Σ ∇F·x + Σ ∇b·b, and the masks' gradients by differentiating
through it once more. It gives the terms of the autograd engine at about three times its cost.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.fullgrad import step_biases
from dmbp.engine import Loss, Terms
from dmbp.engine.plan.plan import ExecutionPlan
from dmbp.linear.steps import LinearStep


class _MaskedGradient(torch.autograd.Function):
    """The identity; in the backward pass, the gradient is multiplied by the mask."""

    @staticmethod
    def forward(ctx: Any, activation: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return activation.view_as(activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0] * mask, None


class LiteralEngine:
    """Learns masks as the paper's Algorithm 1 is printed."""

    def __init__(
        self, plan: ExecutionPlan, logits: Mapping[str, Tensor], *, loss: Loss, learning_rate: float
    ) -> None:
        net = plan.net
        self._net = net
        self._loss = loss
        self._logits = {name: tensor.detach().clone() for name, tensor in logits.items()}
        self._optimiser = torch.optim.RMSprop(list(self._logits.values()), lr=learning_rate)
        self._biases = step_biases(net)
        with torch.no_grad():
            self._output = net.value()

    @torch.enable_grad()
    def step(self) -> Terms:
        """One iteration; the terms before it."""
        for tensor in self._logits.values():
            tensor.requires_grad_(True)
        masks = {name: torch.sigmoid(tensor) for name, tensor in self._logits.items()}
        positive = self._masked_backward(masks)
        negative = self._masked_backward({name: 1 - mask for name, mask in masks.items()})
        terms = Terms(self._output, positive, negative)
        gradients = torch.autograd.grad(self._loss(terms).sum(), list(self._logits.values()))
        for tensor, gradient in zip(self._logits.values(), gradients, strict=True):
            tensor.grad = gradient
        self._optimiser.step()
        return Terms(self._output, positive.detach(), negative.detach())

    def _masked_backward(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Σ ∇F·x + Σ ∇b·b of every row, gradients multiplied by the masks on their way."""
        biased: dict[int, Tensor] = {}

        def at_step(step: LinearStep, results: list[Any]) -> list[Any]:
            if step.output in self._biases:
                biased[step.output] = results[0]
            if step.site is None:
                return results
            return [_MaskedGradient.apply(results[0], masks[step.site.name])]

        inputs = self._net.inputs.detach().requires_grad_()
        (score,) = self._net.propagate_steps([inputs], at_step)
        first, *rest = torch.autograd.grad(
            score.sum(), [inputs, *biased.values()], create_graph=True
        )
        total = (first * inputs).flatten(1).sum(1) + self._net.constant
        for index, gradient in zip(biased, rest, strict=True):
            total = total + (gradient * self._biases[index]).flatten(1).sum(1)
        return total
