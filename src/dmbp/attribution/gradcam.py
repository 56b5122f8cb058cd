"""GradCAM: the channels of the last stage, weighted by how much the score rises with them.

    a = relu(Σ_c mean(∂y/∂A_c) A_c)        brought to the image's size by bilinear interpolation

The stage is found in the graph (`linear/stage.py`): `layer4` of a ResNet, `features.29` of VGG16.

    >>> GradCAM(model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.attribution.method import Method, Question
from dmbp.linear.model import Model
from dmbp.linear.network import LinearNetwork
from dmbp.linear.outputs import Output
from dmbp.linear.stage import last_stage, stage_of
from dmbp.linear.step import Step


class GradCAM(Method):
    """Regions of the last stage, or of the module called `layer`; `signed` keeps negatives."""

    def __init__(
        self,
        model: Model,
        *,
        layer: str | None = None,
        signed: bool = False,
        output: Output = None,
    ) -> None:
        super().__init__(model, output=output)
        self.layer = layer
        self.signed = signed

    def answer(self, question: Question) -> Tensor:
        """The weighted sum of channels of some rows, at the image's size."""
        net = self.network(question)
        stage = last_stage(net) if self.layer is None else stage_of(net, self.layer)
        activation, gradient = _at(net, stage)
        weights = gradient.mean((2, 3), keepdim=True)
        regions = (weights * activation).sum(1, keepdim=True)
        regions = regions if self.signed else regions.relu()
        return functional.interpolate(regions, question.inputs.shape[2:], mode="bilinear")


@torch.enable_grad()
def _at(net: LinearNetwork, stage: Step) -> tuple[Tensor, Tensor]:
    """A step's output, and the gradient of the score in it."""
    seen: list[Tensor] = []

    def at_step(step: Step, results: list[Any]) -> list[Any]:
        if step.output != stage.output:
            return results
        seen.append(results[0].detach().requires_grad_())
        return list(seen)

    (score,) = net.propagate_steps([net.inputs], at_step)
    return seen[0].detach(), torch.autograd.grad(score.sum(), seen[0])[0]
