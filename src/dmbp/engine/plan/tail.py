"""The steps after the last sites as one affine function, the tail; channel pruning before it.

After the last masks the network is an affine function of a few values:

    score = Σ ⟨∇v, v⟩ + constant          over the values v that the tail reads

Neither the gradients ∇v nor the constant change while masks are learned, so the tail's own steps
run once instead of at every iteration.

If the last convolution has one output channel per class, as in SqueezeNet, masks on other classes'
channels do not affect the target's score. They keep their initial values and need not be computed:
`prune_channels` cuts the last convolution and ReLU down to the channels that the score depends on.
GPUs compute all channels: a recorded CUDA graph serves all classes, which saves more than the
channels cost.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.plan.rewrites import CONVOLUTION, convolution_arguments
from dmbp.engine.plan.streams import ROWS_FIRST, RowLayout, by_stream, channels_last
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import FrozenGraph, LinearStep


@dataclass(frozen=True)
class Tail:
    """The score as an affine function of the values that the tail reads.

    Attributes:
        gradients: The gradient of the score with respect to each of these values, by index.
        constant: The score's constant part.
        layouts: The row layouts of these values; `ROWS_FIRST` for values without an entry.
    """

    gradients: Mapping[int, Tensor]
    constant: Tensor
    layouts: Mapping[int, RowLayout] = field(default_factory=dict[int, RowLayout])

    def scores(self, values: Mapping[int, Tensor]) -> Tensor:
        """Return both streams' scores, (2, rows), from the stacked values."""
        scores, rows = self.constant.expand(2, -1), len(self.constant)
        for index, gradient in self.gradients.items():
            layout = self.layouts.get(index, ROWS_FIRST)
            products = by_stream(values[index]) * gradient
            scores = scores + torch.stack([layout.by_row(p, rows).sum(1) for p in products])
        return scores

    def seed_gradients(self, seeds: Tensor) -> dict[int, Tensor]:
        """Return the loss's gradient with respect to each value, from one seed per row, (rows,)."""
        return {
            index: self.layouts.get(index, ROWS_FIRST).spread(seeds, gradient.dim()) * gradient
            for index, gradient in self.gradients.items()
        }


def tail_steps(frozen: FrozenGraph) -> list[LinearStep]:
    """Return the steps that no site depends on, without the sites themselves."""
    site_inputs: set[int] = set()
    steps: list[LinearStep] = []
    for step in reversed(frozen.steps):
        if step.site is not None or step.output in site_inputs:
            site_inputs.update(step.reads)
        else:
            steps.append(step)
    return steps[::-1]


def tail_inputs(steps: Sequence[LinearStep], frozen: FrozenGraph) -> list[int]:
    """Return the indices of the values that the tail reads from other steps.

    If the tail is empty, this is the network's result.
    """
    producers = {step.output for step in steps}
    reads = [index for step in steps for index in step.reads if index not in producers]
    return list(dict.fromkeys(reads)) if frozen.result in producers else [frozen.result]


@torch.enable_grad()
def make_tail(
    net: LinearNetwork, steps: Sequence[LinearStep], shapes: Mapping[int, Sequence[int]]
) -> Tail:
    """Return the tail, computed from its value and its gradient at zero.

    `shapes` are the shapes of the values that its steps read, by index.
    """
    zeros = {index: net.inputs.new_zeros(shape).requires_grad_() for index, shape in shapes.items()}
    slots: dict[int, Any] = dict(zeros)
    for step in steps:
        slots[step.output] = step.apply(slots)
    scores = net.score(slots[steps[-1].output if steps else next(iter(zeros))])
    gradients = torch.autograd.grad(
        scores.sum(), list(zeros.values()), allow_unused=True, materialize_grads=True
    )
    by_index = {index: channels_last(g) for index, g in zip(zeros, gradients, strict=True)}
    return Tail(by_index, scores.detach())


@dataclass(frozen=True)
class PrunedChannels:
    """The last convolutions and gates, and the tail, with fewer channels.

    Attributes:
        steps: The steps that changed, by output index.
        tail: The tail of the smaller network.
        channels: The indices of the channels kept, by site name; no entry if all are kept.
    """

    steps: Mapping[int, LinearStep]
    tail: Tail
    channels: Mapping[str, Tensor]

    def select(self, name: str, logits: Tensor) -> Tensor:
        """Return the logits of a site's kept channels."""
        kept = self.channels.get(name)
        return logits if kept is None else logits[:, kept]

    def restore(self, name: str, learned: Tensor, initial: Tensor | None) -> Tensor:
        """Return all logits of a site: learned in the kept channels, initial in the others.

        `initial` has the initial logits of all channels, or is None if the site was not pruned.
        """
        if initial is None:
            return learned
        return initial.index_copy(1, self.channels[name], learned.to(initial.dtype))


def prune_channels(steps: Sequence[LinearStep], tail: Tail, protected: set[int]) -> PrunedChannels:
    """Prune convolutions and gates before the tail, except steps whose output is `protected`."""
    changed: dict[int, LinearStep] = {}
    gradients = dict(tail.gradients)
    channels: dict[str, Tensor] = {}
    for gate, convolution in _prunable_pairs(steps, tail, protected):
        assert gate.site is not None
        gradient = gradients[gate.output]
        kept = (gradient != 0).any(3).any(2).any(0).nonzero()[:, 0]
        if not 0 < len(kept) < gradient.shape[1]:
            continue
        changed[convolution.output] = _prune_convolution(convolution, kept)
        changed[gate.output] = _prune_gate(gate, kept)
        gradients[gate.output] = channels_last(gradient[:, kept])
        channels[gate.site.name] = kept
    return PrunedChannels(changed, replace(tail, gradients=gradients), channels)


def _prunable_pairs(
    steps: Sequence[LinearStep], tail: Tail, protected: set[int]
) -> list[tuple[LinearStep, LinearStep]]:
    """Return gates that only the tail reads, each with the convolution that only the gate reads."""
    producers = {step.output: step for step in steps if step.output not in protected}
    readers = Counter(index for step in steps for index in step.reads)
    pairs: list[tuple[LinearStep, LinearStep]] = []
    for index, gradient in tail.gradients.items():
        gate = producers.get(index)
        if gate is None or gate.site is None or readers[index] > 0 or gradient.dim() != 4:
            continue
        convolution = producers.get(gate.reads[0])
        if convolution is None or readers[convolution.output] > 1:
            continue
        is_conv2d = convolution.operation == CONVOLUTION and not convolution.keywords
        if is_conv2d and convolution_arguments(convolution)[-1] == 1:
            pairs.append((gate, convolution))
    return pairs


def _prune_convolution(step: LinearStep, kept: Tensor) -> LinearStep:
    weight, bias, *rest = convolution_arguments(step)
    bias = None if bias is None else bias[kept]
    arguments = [step.arguments[0], weight[kept], bias, *rest]
    return replace(step, arguments=arguments, shape=_pruned_shape(step, kept))


def _prune_gate(step: LinearStep, kept: Tensor) -> LinearStep:
    line = step.function
    assert isinstance(line, ElementwiseLine)

    def keep_channels(tensor: Tensor) -> Tensor:
        return tensor[:, kept] if tensor.dim() == 4 and tensor.shape[1] > 1 else tensor

    offset = None if line.offset is None else keep_channels(line.offset)
    return replace(
        step,
        function=ElementwiseLine(keep_channels(line.slope), offset),
        shape=_pruned_shape(step, kept),
    )


def _pruned_shape(step: LinearStep, kept: Tensor) -> tuple[int, ...]:
    assert step.shape is not None
    return (step.shape[0], len(kept), *step.shape[2:])
