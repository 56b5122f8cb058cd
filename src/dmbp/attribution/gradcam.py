"""The last stage of a network that still knows where things are: what region methods look at.

It is the last tensor with a height and a width that everything passes through on its way to the
output, before the pooling that ends the convolutions: `layer4` of a ResNet, `features.29` of VGG16,
the joined branches of an Inception network.

GradCAM: the channels of the last stage, weighted by how much the score rises with them.

    a = relu(Σ_c mean(∂y/∂A_c) A_c)        brought to the image's size by bilinear interpolation

The stage is found in the graph (`linear/stage.py`): `layer4` of a ResNet, `features.29` of VGG16.

    >>> GradCAM(model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.attribution.base import Method, Question
from dmbp.errors import InputError, suggestion
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.linear.network import LinearNetwork, run
from dmbp.linear.steps import Step

_REARRANGE = ("permute", "transpose", "view", "reshape", "flatten", "movedim", "squeeze", "numpy_T")
_PASSED_OVER = ("pool", "dropout", "getitem", "clone", "contiguous", "alias", "detach")


def last_stage(net: LinearNetwork) -> Step:
    """The step whose output is the last stage; an error where no step has a height and width."""
    maps = _spatial_steps(net)
    through = _passed_by_all(net.frozen.steps)
    stages = [step for step in net.frozen.steps if step.output in maps & through]
    while len(stages) > 1 and any(word in stages[-1].operation for word in _PASSED_OVER):
        stages.pop()
    if maps and not stages:
        raise InputError(
            "no layer with a height and a width sees everything: branches are pooled apart; name "
            "one of them with layer="
        )
    if not stages:
        raise InputError(
            "the model has no layer with a height and a width, so there are no regions to show; "
            "use a method of pixels, such as integrated_gradients"
        )
    return stages[-1]


def stage_of_layer(net: LinearNetwork, layer: str) -> Step:
    """The step whose output is that of the module called `layer`."""
    inside = [
        step
        for step in net.frozen.steps
        if step.module == layer or step.module.startswith(f"{layer}.")
    ]
    if not inside:
        names = sorted({step.module for step in net.frozen.steps if step.module})
        raise InputError(f"the model has no layer {layer!r}; {suggestion(layer, names)}")
    if inside[-1].output not in _spatial_steps(net):
        raise InputError(f"the output of {layer!r} has no height and width, so no regions to show")
    times = _runs(net.frozen.steps, inside)
    if times > 1 and inside[-1].output not in _passed_by_all(net.frozen.steps):
        raise InputError(
            f"{layer!r} is run {times} times, and the last time does not see everything: name "
            "another layer, or use a method of pixels, such as integrated_gradients"
        )
    return inside[-1]


def _runs(steps: Sequence[Step], inside: Sequence[Step]) -> int:
    """How often a layer is run, by the stretches of its steps."""
    outputs = {step.output for step in inside}
    flags = [step.output in outputs for step in steps]
    return sum(now and not before for before, now in zip([False, *flags], flags, strict=False))


_FIRST, _LAST = "channels first", "channels last"
_PERMUTED = {(_FIRST, (0, 2, 3, 1)): _LAST, (_LAST, (0, 3, 1, 2)): _FIRST}


@torch.no_grad()
def _spatial_steps(net: LinearNetwork) -> set[int]:
    """Outputs shaped (rows, channel, height, width) with more than one position.

    What has been reshaped may have four dimensions and mean something else by them, until a
    convolution or a pooling reads it as an image again, or it is added to one.
    """
    layouts: dict[int, str] = {0: _FIRST}
    found: set[int] = set()

    def at_step(step: Step, results: list[Any]) -> list[Any]:
        (result,) = results
        layout = _layout(step, layouts)
        if layout is not None:
            layouts[step.output] = layout
        is_map = layout == _FIRST and isinstance(result, Tensor) and result.dim() == 4
        if is_map and result.shape[2:].numel() > 1:
            found.add(step.output)
        return results

    run(net.frozen, [net.inputs], at_step)
    return found


def _layout(step: Step, layouts: Mapping[int, str]) -> str | None:
    """How a step's output is laid out, None where that is not known."""
    read = [layouts.get(index) for index in step.reads]
    if any(word in step.operation for word in ("conv", "pool", "upsample")):
        return _FIRST
    if step.operation == "aten.permute.default":
        return _PERMUTED.get((read[0] or "", tuple(d % 4 for d in step.arguments[1])))
    if any(word in step.operation for word in _REARRANGE):
        return None
    known = [layout for layout in read if layout is not None]
    if step.operation != "aten.add.Tensor" and len(known) < len(read):
        return None
    return known[0] if len(set(known)) == 1 else None


def _passed_by_all(steps: Sequence[Step]) -> set[int]:
    """Outputs that no path from the input to the result goes around.

    Steps come in order and each leads to the result, so these are the ones no edge jumps over.
    """
    last_reader = {index: step.output for step in steps for index in step.reads}
    found: set[int] = set()
    furthest = last_reader[0]
    for step in steps:
        if furthest <= step.output:
            found.add(step.output)
        furthest = max(furthest, last_reader.get(step.output, 0))
    return found


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
        stage = last_stage(net) if self.layer is None else stage_of_layer(net, self.layer)
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
