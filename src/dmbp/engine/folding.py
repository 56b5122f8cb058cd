"""Batch norm, folded into the convolution before it: one step instead of two.

    BN(W z + b) = (s W) z + (s (b − mean) + shift)        s = weight / √(variance + eps)

Steps that pass their input on unchanged vanish: dropout in evaluation mode, `contiguous`, averages
to the size that is there, as VGG16's of 7 × 7 pixels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dmbp.linear.step import FrozenGraph, Slot, Step, with_finished

CONVOLUTION = "aten.conv2d.default"
BATCH_NORM = "aten.batch_norm.default"
PASSED_ON = {
    "aten.dropout.default",
    "aten.feature_dropout.default",
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
}
TO_A_SIZE = "aten.adaptive_avg_pool2d.default"


def convolution_arguments(step: Step) -> tuple[Tensor, Tensor | None, list[int], Any, Any, int]:
    """Weight, bias, stride, padding, dilation and groups of an `aten.conv2d` step."""
    defaults: list[Any] = [None, [1, 1], [0, 0], [1, 1], 1]
    weight, *rest = step.arguments[1:]
    bias, stride, padding, dilation, groups = [*rest, *defaults[len(rest) :]]
    return weight, bias, list(stride), list(padding), list(dilation), int(groups)


def scale_and_shift(step: Step) -> tuple[Tensor, Tensor]:
    """What an `aten.batch_norm` step in evaluation mode multiplies by and adds, by channel."""
    return _scales_and_shifts([step])[0]


def _scales_and_shifts(steps: Sequence[Step]) -> list[tuple[Tensor, Tensor]]:
    """The same of many, which a GPU computes all at once."""
    if not steps:
        return []
    if len({_kind(step) for step in steps}) > 1:
        return [scale_and_shift(step) for step in steps]
    given = list(zip(*(step.arguments[1:8] for step in steps), strict=True))
    weight, bias, mean, variance = (None if p[0] is None else torch.cat(p) for p in given[:4])
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance + given[6][0])
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    channels = [len(part) for part in given[2]]
    return list(zip(scale.split(channels), shift.split(channels), strict=True))


def _kind(step: Step) -> tuple[Any, ...]:
    weight, bias, mean, _, _, _, epsilon = step.arguments[1:8]
    return weight is None, bias is None, mean.dtype, epsilon


@torch.no_grad()
def folded(frozen: FrozenGraph) -> FrozenGraph:
    """The same network in fewer steps; sites and their order stay."""
    steps = _without_passing_on(frozen.steps)
    readers = Counter(index for step in steps for index in step.reads)
    made = {step.output: step for step in steps}
    pairs = [
        (before, step)
        for step in steps
        if step.operation == BATCH_NORM
        and (before := made.get(step.reads[0])) is not None
        and before.operation == CONVOLUTION
        and readers[before.output] == 1
        and not before.keywords
    ]
    found = _scales_and_shifts([norm for _, norm in pairs])
    one = {
        norm.output: _folded_pair(before, norm, *by)
        for (before, norm), by in zip(pairs, found, strict=True)
    }
    gone = {before.output for before, _ in pairs}
    kept = [one.get(step.output, step) for step in steps if step.output not in gone]
    return replace(frozen, steps=with_finished(kept, frozen.result))


def _folded_pair(convolution: Step, norm: Step, scale: Tensor, shift: Tensor) -> Step:
    weight, bias, *rest = convolution_arguments(convolution)
    shift = shift if bias is None else shift + scale * bias
    arguments = [convolution.arguments[0], weight * scale.view(-1, 1, 1, 1), shift, *rest]
    return replace(convolution, arguments=arguments, keywords={}, output=norm.output)


def _without_passing_on(steps: Sequence[Step]) -> list[Step]:
    source: dict[int, int] = {}

    def rename(template: Any) -> Any:
        if isinstance(template, Slot):
            return Slot(source.get(template.index, template.index))
        if isinstance(template, list | tuple):
            return type(template)(rename(item) for item in template)
        return template

    kept: list[Step] = []
    last = steps[-1].output
    shapes = {step.output: step.shape for step in steps}
    for step in steps:
        if step.output != last and _passes_on(step, shapes):
            (read,) = step.reads
            source[step.output] = source.get(read, read)
        else:
            keywords = {name: rename(value) for name, value in step.keywords.items()}
            kept.append(replace(step, arguments=rename(step.arguments), keywords=keywords))
    return kept


def _passes_on(step: Step, shapes: Mapping[int, tuple[int, ...] | None]) -> bool:
    if step.operation == TO_A_SIZE:
        return step.shape is not None and step.shape == shapes.get(step.reads[0])
    return step.operation in PASSED_ON
