"""FullGrad: what the input and the bias of every layer contribute to the score, added up in place.

    y = ∇y · x + Σ_l ∇y_l · b_l
    a = ψ(∇y ⊙ x) + Σ_l Σ_c ψ(∇y_l ⊙ b_l)

b_l is the output of step l of the linear network when everything it reads is zero: a convolution's
bias, batch norm's hidden shift, an added constant, the offset of a saturated activation. With all
of these counted, the parts add up to the score exactly. ψ takes magnitudes, scales them to [0, 1]
for each image and resizes them to the image by linear interpolation with aligned corners. Tokens
are laid out as maps first (`stage.py`).

    >>> FullGrad(model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.stage import Stages, require_places, resized
from dmbp.linear import Question
from dmbp.linear.network import LinearNetwork
from dmbp.linear.steps import LinearStep
from dmbp.precision import full_precision


class FullGrad(Method):
    """Magnitudes of the contributions of the input and of all biases with places.

    Args:
        model: The model to explain.
        generator: Not used by this method.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def answer(self, question: Question) -> Tensor:
        """Return the sum of the maps of all parts for each row."""
        net = question.network()
        parts = full_gradient(net)
        require_places("fullgrad", question.inputs)
        stages = Stages(net, question.linearizer.positions(question.inputs))
        size = question.inputs.shape[2:]
        total = _normalise(parts.input_gradient * question.inputs).sum(1, keepdim=True)
        for step, contribution in zip(parts.steps, parts.contributions, strict=True):
            laid_out = _as_map(stages, step, contribution)
            if laid_out is not None:
                maps = resized(_normalise(laid_out), size, align_corners=True)
                total = total + maps.sum(1, keepdim=True)
        return total


def _as_map(stages: Stages, step: LinearStep, contribution: Tensor) -> Tensor | None:
    """Return a contribution as a map, of one place for each image after a pooling, or None."""
    grid = stages.grid(step)
    if grid is not None:
        return grid.lay_out(contribution, len(stages.net.inputs))
    is_pooled = (
        contribution.dim() == stages.net.inputs.dim() and contribution.shape[2:].numel() == 1
    )
    return contribution if is_pooled else None


def _normalise(contribution: Tensor) -> Tensor:
    """Return magnitudes scaled to [0, 1] over all channels and positions of an image."""
    magnitude = contribution.abs()
    flat = magnitude.flatten(1)
    lowest, highest = (
        edge.view(-1, *(1,) * (magnitude.dim() - 1)) for edge in (flat.amin(1), flat.amax(1))
    )
    # A part that is the same everywhere does not favour any pixel, and becomes zero.
    return (magnitude - lowest) / (highest - lowest).clamp(min=1e-30)


@dataclass(frozen=True)
class FullGradient:
    """The score of every row, split into the input's part and those of the biases.

    `contributions` holds ∇y_l ⊙ b_l of each of `steps`, those with a bias, shaped like its output.
    `constant` (rows,) is the part of the score that no step adds: zero, unless the target is a
    function of the outputs.
    """

    input_gradient: Tensor
    steps: tuple[LinearStep, ...]
    contributions: tuple[Tensor, ...]
    constant: Tensor


@full_precision()
def full_gradient(net: LinearNetwork) -> FullGradient:
    """Split the score of every row into the input's part and those of the biases."""
    biases = step_biases(net)
    steps: list[LinearStep] = []
    outputs: list[Tensor] = []

    def at_step(step: LinearStep, streams: list[Any]) -> list[Any]:
        if step.output in biases and streams[0].requires_grad:
            steps.append(step)
            outputs.append(streams[0])
        return streams

    with torch.inference_mode(False), torch.enable_grad():
        inputs = net.inputs.detach().requires_grad_()
        (score,) = net.propagate_steps([inputs], at_step)
        first, *others = torch.autograd.grad(
            score.sum(), [inputs, *outputs], allow_unused=True, materialize_grads=True
        )
    parts = tuple(biases[s.output] * other for s, other in zip(steps, others, strict=True))
    return FullGradient(first, tuple(steps), parts, net.constant)


@torch.no_grad()
def step_biases(net: LinearNetwork) -> dict[int, Tensor]:
    """Return the biases of all steps where they are not zero, by the step's output."""
    results: dict[int, Any] = {0: net.inputs}
    biases: dict[int, Tensor] = {}

    def at_step(step: LinearStep, streams: list[Any]) -> list[Any]:
        bias = step.apply({index: _zeros_like(results[index]) for index in step.reads})
        results[step.output] = streams[0]
        if isinstance(bias, Tensor) and bool(bias.any()):
            biases[step.output] = bias.expand(streams[0].shape)
        return streams

    net.propagate_steps([net.inputs], at_step)
    return biases


def _zeros_like(value: Any) -> Any:
    """Return a step's result with zeros in place of its tensors."""
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, list | tuple):
        return type(value)(_zeros_like(item) for item in value)
    return value
