"""The end of a network: the steps after the last sites, and last layers without unused channels.

After the last masks the network is an affine function of a few values, so a score is a product:

    score = Σ ⟨∇v, v⟩ + constant          over the values v that the last steps read

Neither part changes while masks are learned, so the last steps run once instead of at every
iteration.

If classes are channels until the end, as in SqueezeNet, the masks of other classes' channels have
no effect on the target's score. They keep their initial values and need not be computed:
`prune_channels` cuts the last convolution and ReLU down to the channels that the score depends on.
On a GPU they are computed anyway: a recorded CUDA graph serves all classes, which saves more than
the channels cost.
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
from dmbp.linear.steps import FrozenGraph, Step


@dataclass(frozen=True)
class Tail:
    """The score as an affine function of the values that the last steps read.

    Attributes:
        gradients: The gradient of the score in each of these values, by index.
        constant: The score's constant part.
        layouts: Where the rows of these values are; rows come first in values without an entry.
    """

    gradients: Mapping[int, Tensor]
    constant: Tensor
    layouts: Mapping[int, RowLayout] = field(default_factory=dict[int, RowLayout])

    def scores(self, values: Mapping[int, Tensor]) -> Tensor:
        """Return both streams' scores (2, rows) from the stacked values."""
        scores, rows = self.constant.expand(2, -1), len(self.constant)
        for index, gradient in self.gradients.items():
            layout = self.layouts.get(index, ROWS_FIRST)
            products = by_stream(values[index]) * gradient
            scores = scores + torch.stack([layout.by_row(p, rows).sum(1) for p in products])
        return scores

    def seed_gradients(self, seeds: Tensor) -> dict[int, Tensor]:
        """Return the loss's gradient in each value, from its seed for one stream of every row."""
        return {
            index: self.layouts.get(index, ROWS_FIRST).spread(seeds, part.dim()) * part
            for index, part in self.gradients.items()
        }


def tail_steps(frozen: FrozenGraph) -> list[Step]:
    """Return the steps after which no site follows."""
    before_a_site: set[int] = set()
    steps: list[Step] = []
    for step in reversed(frozen.steps):
        if step.site is not None or step.output in before_a_site:
            before_a_site.update(step.reads)
        else:
            steps.append(step)
    return steps[::-1]


def tail_inputs(steps: Sequence[Step], frozen: FrozenGraph) -> list[int]:
    """Return the values that the tail reads from other steps; the result if the tail is empty."""
    producers = {step.output for step in steps}
    reads = [index for step in steps for index in step.reads if index not in producers]
    return list(dict.fromkeys(reads)) if frozen.result in producers else [frozen.result]


@torch.enable_grad()
def make_tail(
    net: LinearNetwork, steps: Sequence[Step], shapes: Mapping[int, Sequence[int]]
) -> Tail:
    """Return the tail, computed from its value and its slope at zero.

    `shapes` are the shapes of the values that its steps read.
    """
    given = {index: net.inputs.new_zeros(shape).requires_grad_() for index, shape in shapes.items()}
    slots: dict[int, Any] = dict(given)
    for step in steps:
        slots[step.output] = step.apply(slots)
    scores = net.score(slots[steps[-1].output if steps else next(iter(given))])
    gradients = torch.autograd.grad(
        scores.sum(), list(given.values()), allow_unused=True, materialize_grads=True
    )
    parts = {index: channels_last(part) for index, part in zip(given, gradients, strict=True)}
    return Tail(parts, scores.detach())


@dataclass(frozen=True)
class PrunedChannels:
    """The last steps and the tail with fewer channels.

    Attributes:
        steps: The steps that changed, by output index.
        tail: The tail of the smaller network.
        channels: The channels kept, by site name.
    """

    steps: Mapping[int, Step]
    tail: Tail
    channels: Mapping[str, Tensor]

    def select(self, name: str, logits: Tensor) -> Tensor:
        """Return a site's logits in the channels that are kept."""
        kept = self.channels.get(name)
        return logits if kept is None else logits[:, kept]

    def restore(self, name: str, learned: Tensor, start: Tensor | None) -> Tensor:
        """Return all logits of a site: the learned ones, and the initial ones elsewhere.

        `start` are the initial logits of all channels, None if the site was not pruned.
        """
        if start is None:
            return learned
        return start.index_copy(1, self.channels[name], learned.to(start.dtype))


def prune_channels(steps: Sequence[Step], tail: Tail, fixed: set[int]) -> PrunedChannels:
    """Prune the convolutions and gates before the tail; steps in `fixed` are not touched."""
    changed: dict[int, Step] = {}
    gradients = dict(tail.gradients)
    channels: dict[str, Tensor] = {}
    for gate, convolution in _prunable_ends(steps, tail, fixed):
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


def _prunable_ends(steps: Sequence[Step], tail: Tail, fixed: set[int]) -> list[tuple[Step, Step]]:
    """Find gates that only the tail reads, each with a convolution that only the gate reads."""
    producers = {step.output: step for step in steps if step.output not in fixed}
    readers = Counter(index for step in steps for index in step.reads)
    found: list[tuple[Step, Step]] = []
    for end, gradient in tail.gradients.items():
        gate = producers.get(end)
        if gate is None or gate.site is None or readers[end] > 0 or gradient.dim() != 4:
            continue
        convolution = producers.get(gate.reads[0])
        if convolution is None or readers[convolution.output] > 1:
            continue
        plain = convolution.operation == CONVOLUTION and not convolution.keywords
        if plain and convolution_arguments(convolution)[-1] == 1:
            found.append((gate, convolution))
    return found


def _prune_convolution(step: Step, kept: Tensor) -> Step:
    weight, bias, *rest = convolution_arguments(step)
    bias = None if bias is None else bias[kept]
    arguments = [step.arguments[0], weight[kept], bias, *rest]
    return replace(step, arguments=arguments, shape=_pruned_shape(step, kept))


def _prune_gate(step: Step, kept: Tensor) -> Step:
    line = step.function
    assert isinstance(line, ElementwiseLine)

    def part(tensor: Tensor) -> Tensor:
        return tensor[:, kept] if tensor.dim() == 4 and tensor.shape[1] > 1 else tensor

    offset = None if line.offset is None else part(line.offset)
    return replace(
        step, function=ElementwiseLine(part(line.slope), offset), shape=_pruned_shape(step, kept)
    )


def _pruned_shape(step: Step, kept: Tensor) -> tuple[int, ...]:
    assert step.shape is not None
    return (step.shape[0], len(kept), *step.shape[2:])
