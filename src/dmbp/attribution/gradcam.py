"""GradCAM: the channels of the last stage, weighted by how much the score rises with each.

    a = relu(Σ_c mean(∂y/∂A_c) A_c)        resized to the image by bilinear interpolation

The last stage A is found in the linear network. It is the last tensor with a height and a width
that every path to the output passes through, before the pooling that ends the convolutions:
`layer4` of a ResNet, `features.29` of VGG16, the concatenated branches of an Inception network.

    >>> GradCAM(model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.attribution.base import Method
from dmbp.errors import InputError, suggestion
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model
from dmbp.linear.network import LinearNetwork, run
from dmbp.linear.steps import Step


class GradCAM(Method):
    """Regions that raise the score, at the resolution of a convolutional stage.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted; None takes the last
            stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

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
        """Return the weighted sum of channels for each row, resized to the image."""
        net = question.network()
        stage = last_stage(net) if self.layer is None else stage_of_layer(net, self.layer)
        activation, gradient = _activation_and_gradient(net, stage)
        weights = gradient.mean((2, 3), keepdim=True)
        regions = (weights * activation).sum(1, keepdim=True)
        regions = regions if self.signed else regions.relu()
        return functional.interpolate(regions, question.inputs.shape[2:], mode="bilinear")


@torch.enable_grad()
def _activation_and_gradient(net: LinearNetwork, stage: Step) -> tuple[Tensor, Tensor]:
    """Return a step's output and the gradient of the score with respect to it."""
    seen: list[Tensor] = []

    def at_step(step: Step, results: list[Any]) -> list[Any]:
        if step.output != stage.output:
            return results
        seen.append(results[0].detach().requires_grad_())
        return list(seen)

    (score,) = net.propagate_steps([net.inputs], at_step)
    return seen[0].detach(), torch.autograd.grad(score.sum(), seen[0])[0]


_SKIPPED = ("pool", "dropout", "getitem", "clone", "contiguous", "alias", "detach")
"""Operations after the last stage whose outputs do not count as stages."""


def last_stage(net: LinearNetwork) -> Step:
    """Return the step whose output is the last stage.

    Raises:
        InputError: If no step with a height and a width is on every path.
    """
    maps = _feature_maps(net)
    through = _on_every_path(net.frozen.steps)
    stages = [step for step in net.frozen.steps if step.output in maps & through]
    while len(stages) > 1 and any(word in stages[-1].operation for word in _SKIPPED):
        stages.pop()
    if maps and not stages:
        raise InputError(
            "no layer with a height and a width sees the whole image, because branches are pooled "
            "separately; name one of them with layer="
        )
    if not stages:
        raise InputError(
            "the model has no layer with a height and a width, so there are no regions to show; "
            "use a method that attributes to pixels, such as integrated_gradients"
        )
    return stages[-1]


def stage_of_layer(net: LinearNetwork, layer: str) -> Step:
    """Return the step whose output is that of the module named `layer`.

    Raises:
        InputError: If there is no such module, its output has no height and width, or it runs
            several times and its last output is not on every path.
    """
    inside = [
        step
        for step in net.frozen.steps
        if step.module == layer or step.module.startswith(f"{layer}.")
    ]
    if not inside:
        names = sorted({step.module for step in net.frozen.steps if step.module})
        raise InputError(f"the model has no layer {layer!r}; {suggestion(layer, names)}")
    if inside[-1].output not in _feature_maps(net):
        raise InputError(
            f"the output of {layer!r} has no height and width, so there are no regions to show"
        )
    times = _count_runs(net.frozen.steps, inside)
    if times > 1 and inside[-1].output not in _on_every_path(net.frozen.steps):
        raise InputError(
            f"{layer!r} runs {times} times, and its last run does not see the whole image; name "
            "another layer, or use a method that attributes to pixels, such as integrated_gradients"
        )
    return inside[-1]


def _count_runs(steps: Sequence[Step], inside: Sequence[Step]) -> int:
    """Return how often a layer runs: the number of unbroken stretches of its steps."""
    outputs = {step.output for step in inside}
    flags = [step.output in outputs for step in steps]
    return sum(now and not before for before, now in zip([False, *flags], flags, strict=False))


def _on_every_path(steps: Sequence[Step]) -> set[int]:
    """Return the outputs that every path from the input to the result passes through.

    Steps are in order and each leads to the result, so these are the outputs that no edge skips.
    """
    last_reader = {index: step.output for step in steps for index in step.reads}
    on_every_path: set[int] = set()
    furthest = last_reader[0]
    for step in steps:
        if furthest <= step.output:
            on_every_path.add(step.output)
        furthest = max(furthest, last_reader.get(step.output, 0))
    return on_every_path


_FIRST, _LAST = "channels first", "channels last"
_PERMUTED = {(_FIRST, (0, 2, 3, 1)): _LAST, (_LAST, (0, 3, 1, 2)): _FIRST}
_REARRANGE = ("permute", "transpose", "view", "reshape", "flatten", "movedim", "squeeze", "numpy_T")


@torch.no_grad()
def _feature_maps(net: LinearNetwork) -> set[int]:
    """Return the outputs of shape (rows, channel, height, width) with more than one position.

    A reshaped tensor may have four dimensions that mean something else, until a convolution or a
    pooling reads it as an image again, or it is added to one.
    """
    layouts: dict[int, str] = {0: _FIRST}
    maps: set[int] = set()

    def at_step(step: Step, results: list[Any]) -> list[Any]:
        (result,) = results
        layout = _layout(step, layouts)
        if layout is not None:
            layouts[step.output] = layout
        is_map = layout == _FIRST and isinstance(result, Tensor) and result.dim() == 4
        if is_map and result.shape[2:].numel() > 1:
            maps.add(step.output)
        return results

    run(net.frozen, [net.inputs], at_step)
    return maps


def _layout(step: Step, layouts: Mapping[int, str]) -> str | None:
    """Return the layout of a step's output, or None if it is unknown."""
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
