"""What the biases of a linear network contribute to the score, layer by layer.

    y = ∇y · x + Σ_l ∇y_l · b_l

b_l is what step l puts out where everything it reads is zero: a convolution's bias, batch norm's
hidden shift, a constant that is added, the offset of a saturated activation.

Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.freeze import Step
from dmbp.linear.network import LinearNetwork
from dmbp.linear.precision import full_precision


@dataclass(frozen=True)
class FullGradient:
    """The gradient in the input, and the contribution of each step's bias, shaped as its output.

    `constant` is the part of the score that no step adds (rows,): zero, unless a function of the
    outputs is asked about.
    """

    input_gradient: Tensor
    contributions: tuple[Tensor, ...]
    constant: Tensor


@full_precision()
def full_gradient(net: LinearNetwork) -> FullGradient:
    """Split the score of every row into the input's part and those of the biases."""
    biases: list[Tensor] = []
    outputs: list[Tensor] = []
    shapes: dict[int, Any] = {0: net.inputs}

    def at_step(step: Step, results: list[Any]) -> list[Any]:
        (result,) = results
        with torch.no_grad():
            zeros = {index: _zeros(shapes[index]) for index in step.reads}
            bias = step.apply(zeros)
        shapes[step.output] = result
        if isinstance(bias, Tensor) and bool(bias.any()):
            biases.append(bias.expand(result.shape))
            outputs.append(result)
        return results

    with torch.inference_mode(False), torch.enable_grad():
        inputs = net.inputs.detach().requires_grad_()
        (score,) = net.propagate_steps([inputs], at_step)
        gradient, *others = torch.autograd.grad(score.sum(), [inputs, *outputs])
    parts = tuple(bias * other for bias, other in zip(biases, others, strict=True))
    return FullGradient(gradient, parts, net.constant)


def _zeros(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, list | tuple):
        return type(value)(_zeros(item) for item in value)
    return value
