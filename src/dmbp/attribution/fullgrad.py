"""What the biases of a linear network contribute to the score, layer by layer.

    y = ∇y · x + Σ_l ∇y_l · b_l

b_l is what step l puts out where everything it reads is zero: a convolution's bias, batch norm's
hidden shift, a constant that is added, the offset of a saturated activation.

Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.

FullGrad: what the input and the bias of every layer contribute, added up where they are.

    a = ψ(∇y ⊙ x) + Σ_l Σ_c ψ(∇y_l ⊙ b_l)

Together the parts make up the score exactly (`linear/biases.py`). ψ takes magnitudes, scales them
to [0, 1] for each image and brings them to its size by bilinear interpolation with aligned corners.

    >>> FullGrad(model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.attribution.base import Method, Question
from dmbp.errors import InputError
from dmbp.linear.network import LinearNetwork
from dmbp.linear.steps import Step
from dmbp.precision import full_precision


@dataclass(frozen=True)
class FullGradient:
    """The gradient in the input, and the contribution of each step's bias, shaped as its output.

    `constant` is the part of the score that no step adds (rows,): zero, unless a function of the
    outputs is asked about.
    """

    input_gradient: Tensor
    contributions: tuple[Tensor, ...]
    constant: Tensor


@torch.no_grad()
def step_biases(net: LinearNetwork) -> dict[int, Tensor]:
    """What each step that has a bias puts out where everything it reads is zero, by its output."""
    results: dict[int, Any] = {0: net.inputs}
    found: dict[int, Tensor] = {}

    def at_step(step: Step, streams: list[Any]) -> list[Any]:
        bias = step.apply({index: _zeros(results[index]) for index in step.reads})
        results[step.output] = streams[0]
        if isinstance(bias, Tensor) and bool(bias.any()):
            found[step.output] = bias.expand(streams[0].shape)
        return streams

    net.propagate_steps([net.inputs], at_step)
    return found


@full_precision()
def full_gradient(net: LinearNetwork) -> FullGradient:
    """Split the score of every row into the input's part and those of the biases."""
    biases = step_biases(net)
    outputs: dict[int, Tensor] = {}

    def at_step(step: Step, streams: list[Any]) -> list[Any]:
        if step.output in biases and streams[0].requires_grad:
            outputs[step.output] = streams[0]
        return streams

    with torch.inference_mode(False), torch.enable_grad():
        inputs = net.inputs.detach().requires_grad_()
        (score,) = net.propagate_steps([inputs], at_step)
        first, *others = torch.autograd.grad(
            score.sum(), [inputs, *outputs.values()], allow_unused=True, materialize_grads=True
        )
    parts = tuple(biases[k] * other for k, other in zip(outputs, others, strict=True))
    return FullGradient(first, parts, net.constant)


def _zeros(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, list | tuple):
        return type(value)(_zeros(item) for item in value)
    return value


class FullGrad(Method):
    """Contributions of the input and of all biases with a height and a width, never negative."""

    def answer(self, question: Question) -> Tensor:
        """The sum of all maps of some rows."""
        parts = full_gradient(self.network(question))
        if question.inputs.dim() != 4:
            raise InputError(
                "fullgrad needs images of shape (batch, channel, height, width), not "
                f"{tuple(question.inputs.shape)}"
            )
        size = question.inputs.shape[2:]
        total = _scaled(parts.input_gradient * question.inputs).sum(1, keepdim=True)
        for contribution in parts.contributions:
            if contribution.dim() == 4:
                maps = functional.interpolate(
                    _scaled(contribution), size, mode="bilinear", align_corners=True
                )
                total = total + maps.sum(1, keepdim=True)
        return total


def _scaled(contribution: Tensor) -> Tensor:
    """Magnitudes from 0 to 1, over all channels and positions of an image."""
    magnitude = contribution.abs()
    flat = magnitude.flatten(1)
    lowest, highest = (
        edge.view(-1, *(1,) * (magnitude.dim() - 1)) for edge in (flat.amin(1), flat.amax(1))
    )
    # A part that is the same everywhere says nothing about where.
    return (magnitude - lowest) / (highest - lowest).clamp(min=1e-30)
