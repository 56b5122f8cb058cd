"""Rewrites of the frozen graph that compute the same network in fewer or cheaper steps.

`fold_batch_norm` folds batch norm into the convolution before it:

    BN(W z + b) = (s W) z + (s (b − mean) + shift)        s = weight / √(variance + eps)

It also removes steps that return their input unchanged: dropout in evaluation mode, `contiguous`,
and adaptive average pooling to the size of its input, as in VGG16 at 7 × 7.

`reuse_concat` chains concatenations that extend earlier ones:

    cat(a, b, c, d)  =  cat(cat(a, b, c), d)

DenseNets append every layer's output to those before it. As the model is written, the backward
pass splits the gradient of every layer of a block into as many parts as there are layers before it;
in a chain, it splits each gradient in two.

`prune_linear` cuts linear layers down to the outputs that later steps read. Once attention's
probabilities are frozen, queries and keys have no effect; if one layer computes them together with
the values, two thirds of its work is wasted. Outputs that no step reads become zero.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from dmbp.linear.steps import FrozenGraph, LinearStep, Slot, prune_steps

CONVOLUTION = "aten.conv2d.default"
BATCH_NORM = "aten.batch_norm.default"
IDENTITIES = {
    "aten.dropout.default",
    "aten.feature_dropout.default",
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
}
"""Operations that return their input unchanged in evaluation mode."""

ADAPTIVE_POOL = "aten.adaptive_avg_pool2d.default"


def convolution_arguments(
    step: LinearStep,
) -> tuple[Tensor, Tensor | None, list[int], Any, Any, int]:
    """Return weight, bias, stride, padding, dilation and groups of an `aten.conv2d` step."""
    return parse_convolution(step.arguments)


def parse_convolution(
    arguments: Sequence[Any],
) -> tuple[Tensor, Tensor | None, list[int], Any, Any, int]:
    """Return the same from the arguments of `aten.conv2d`, the first of which is the input."""
    defaults: list[Any] = [None, [1, 1], [0, 0], [1, 1], 1]
    weight, *rest = arguments[1:]
    bias, stride, padding, dilation, groups = [*rest, *defaults[len(rest) :]]
    return weight, bias, list(stride), list(padding), list(dilation), int(groups)


def scale_and_shift(step: LinearStep) -> tuple[Tensor, Tensor]:
    """Return the scale and shift per channel of a batch norm in evaluation mode."""
    return scales_and_shifts([step.arguments])[0]


def scales_and_shifts(norms: Sequence[Sequence[Any]]) -> list[tuple[Tensor, Tensor]]:
    """Return the scale and shift of each batch norm, computed in one batch if possible.

    A batch norm is given by the arguments of `aten.batch_norm`.
    """
    if not norms:
        return []
    if len({_norm_form(norm) for norm in norms}) > 1:
        return [scales_and_shifts([norm])[0] for norm in norms]
    arguments = list(zip(*(norm[1:8] for norm in norms), strict=True))
    weight, bias, mean, variance = (None if p[0] is None else torch.cat(p) for p in arguments[:4])
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance + arguments[6][0])
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    channels = [len(part) for part in arguments[2]]
    return list(zip(scale.split(channels), shift.split(channels), strict=True))


def _norm_form(norm: Sequence[Any]) -> tuple[Any, ...]:
    """Return what batch norms must have in common to be computed in one batch."""
    weight, bias, mean, _, _, _, epsilon = norm[1:8]
    return weight is None, bias is None, mean.dtype, epsilon


def fold_into_weight(
    weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a convolution or linear layer whose result is scaled and shifted.

    `scale` and `shift` have one element for each output channel.
    """
    shift = shift if bias is None else shift + scale * bias
    return weight * scale.view(-1, *(1,) * (weight.dim() - 1)), shift


@torch.no_grad()
def fold_batch_norm(frozen: FrozenGraph, *, into: Collection[str] = (CONVOLUTION,)) -> FrozenGraph:
    """Fold batch norms into convolutions and remove identities; sites keep their order.

    `into` names the operations that batch norms are folded into; the second and third argument of
    each are a weight with one line for each output channel, and a bias.
    """
    steps = _remove_identities(frozen.steps)
    readers = Counter(index for step in steps for index in step.reads)
    producers = {step.output: step for step in steps}
    pairs = [
        (before, step)
        for step in steps
        if step.operation == BATCH_NORM
        and (before := producers.get(step.reads[0])) is not None
        and before.operation in into
        and readers[before.output] == 1
        and not before.keywords
    ]
    found = scales_and_shifts([norm.arguments for _, norm in pairs])
    folded = {
        norm.output: _fold_pair(before, norm, scale, shift)
        for (before, norm), (scale, shift) in zip(pairs, found, strict=True)
    }
    folded_away = {before.output for before, _ in pairs}
    kept = [folded.get(step.output, step) for step in steps if step.output not in folded_away]
    return replace(frozen, steps=prune_steps(kept, frozen.result))


def _fold_pair(
    convolution: LinearStep, norm: LinearStep, scale: Tensor, shift: Tensor
) -> LinearStep:
    """Return one convolution that computes the convolution and the batch norm after it."""
    read, weight, *rest = convolution.arguments
    bias = rest[0] if rest else None
    arguments = [read, *fold_into_weight(weight, bias, scale, shift), *rest[1:]]
    return replace(convolution, arguments=arguments, keywords={}, output=norm.output)


def _remove_identities(steps: Sequence[LinearStep]) -> list[LinearStep]:
    """Remove steps that return their input, and let their readers read the input instead."""
    source: dict[int, int] = {}

    def rename(template: Any) -> Any:
        if isinstance(template, Slot):
            return Slot(source.get(template.index, template.index))
        if isinstance(template, list | tuple):
            return type(template)(rename(item) for item in template)
        return template

    kept: list[LinearStep] = []
    last = steps[-1].output
    shapes = {step.output: step.shape for step in steps}
    for step in steps:
        if step.output != last and _is_identity(step, shapes):
            (read,) = step.reads
            source[step.output] = source.get(read, read)
        else:
            keywords = {name: rename(value) for name, value in step.keywords.items()}
            kept.append(replace(step, arguments=rename(step.arguments), keywords=keywords))
    return kept


def _is_identity(step: LinearStep, shapes: Mapping[int, tuple[int, ...] | None]) -> bool:
    if step.operation == ADAPTIVE_POOL:
        return step.shape is not None and step.shape == shapes.get(step.reads[0])
    return step.operation in IDENTITIES


CONCATENATION = "aten.cat.default"


def reuse_concat(frozen: FrozenGraph) -> FrozenGraph:
    """Rewrite each concatenation to start from the longest earlier one that it begins with."""
    earlier: list[LinearStep] = []
    steps: list[LinearStep] = []
    for step in frozen.steps:
        if _concat_parts(step) is None:
            steps.append(step)
        else:
            steps.append(_chain_concat(step, earlier))
            earlier.append(step)
    return replace(frozen, steps=prune_steps(steps, frozen.result))


def _chain_concat(step: LinearStep, earlier: Sequence[LinearStep]) -> LinearStep:
    """Express a concatenation by the longest earlier one that it begins with."""
    parts = _concat_parts(step) or []
    others = [other for other in earlier if other.arguments[1:] == step.arguments[1:]]
    prefixes = [
        other
        for other in others
        if parts[: len(_concat_parts(other) or [])] == _concat_parts(other)
    ]
    if not prefixes:
        return step
    longest = max(prefixes, key=lambda other: len(other.arguments[0]))
    rest = parts[len(longest.arguments[0]) :]
    if not rest:
        return step
    return replace(step, arguments=[[Slot(longest.output), *rest], *step.arguments[1:]])


def _concat_parts(step: LinearStep) -> list[Any] | None:
    """Return the parts of a concatenation of earlier results; None for any other step."""
    if step.operation != CONCATENATION or step.keywords or len(step.arguments) != 2:
        return None
    parts = list(step.arguments[0])
    return parts if all(isinstance(part, Slot) for part in parts) else None


LINEAR = "aten.linear.default"
MOVE_OPERATIONS = {
    *("reshape", "view", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *("permute", "transpose", "select", "slice", "narrow", "unbind", "split", "split_with_sizes"),
    *("chunk", "getitem", "contiguous", "clone"),
}
"""Operations that only select and move elements: run on a tensor of indices, they show where each
element goes."""


@dataclass(frozen=True)
class PartOfLinear:
    """A consecutive range of a linear layer's outputs, padded with zeros on both sides."""

    before: int
    after: int

    def __call__(self, activation: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return all outputs of the layer, with zeros outside the range."""
        return pad(linear(activation, weight, bias), (self.before, self.after))


@torch.no_grad()
def prune_linear(frozen: FrozenGraph) -> FrozenGraph:
    """Cut each linear layer down to the range from its first to its last output that is read."""
    steps = [
        _prune_linear_step(step, frozen) if step.operation == LINEAR and not step.keywords else step
        for step in frozen.steps
    ]
    return replace(frozen, steps=tuple(steps))


def _prune_linear_step(step: LinearStep, frozen: FrozenGraph) -> LinearStep:
    weight, *bias = step.arguments[1:]
    read = _read_outputs(step, frozen).nonzero()[:, 0].tolist()
    if not read or len(read) == len(weight):
        return step
    kept = slice(read[0], read[-1] + 1)
    parts = [None if part is None else part[kept] for part in (weight, *bias)]
    function = PartOfLinear(kept.start, len(weight) - kept.stop)
    return replace(step, function=function, arguments=[step.arguments[0], *parts])


def _read_outputs(step: LinearStep, frozen: FrozenGraph) -> Tensor:
    """Return which outputs of a linear layer are read, following them through `MOVE_OPERATIONS`."""
    assert step.shape is not None
    outputs = torch.arange(step.shape[-1], dtype=torch.int32)
    indices: dict[int, Any] = {step.output: outputs.expand(step.shape)}
    read = torch.zeros(step.shape[-1], dtype=torch.bool)
    for later in frozen.steps:
        slots = indices.keys() & set(later.reads)
        if slots and _only_moves(later, indices):
            indices[later.output] = later.apply(indices)
        elif slots:
            _mark_read(read, [indices[slot] for slot in slots])
    _mark_read(read, [indices[frozen.result]] if frozen.result in indices else [])
    return read


def _only_moves(step: LinearStep, indices: Mapping[int, Any]) -> bool:
    """Return whether a step only moves elements, all of them from values in `indices`."""
    name = step.operation.removeprefix("aten.").partition(".")[0]
    return name in MOVE_OPERATIONS and step.site is None and indices.keys() >= set(step.reads)


def _mark_read(read: Tensor, indices: Sequence[Any]) -> None:
    """Set `read` to True at all indices, in nested sequences of tensors."""
    for part in indices:
        if isinstance(part, Tensor):
            read[part.flatten().long()] = True
        else:
            _mark_read(read, part)
