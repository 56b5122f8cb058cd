"""What comes after the last masks: an affine function of a few values, so a score is a product.

    score = Σ ⟨∇v, v⟩ + constant          over the values v that the last steps read

Neither part changes while masks are learned: the last steps run once, not at every iteration.

A last convolution and ReLU, cut down to the channels that the score depends on.

Where classes are channels until the end, as in SqueezeNet, a question about one class leaves the
masks of all other classes' channels without effect: they stay as they start, and are not computed.
On a GPU they are: a recording is for all classes, and saves more than they cost.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.plan.rewrites import CONVOLUTION, convolution_arguments
from dmbp.engine.plan.streams import FIRST, RowLayout, by_stream, channels_last
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import FrozenGraph, Step


@dataclass(frozen=True)
class Tail:
    """The gradient of the score in each value that the last steps read, and the constant.

    `layouts` say where the rows of these values are, if not first.
    """

    gradients: Mapping[int, Tensor]
    constant: Tensor
    layouts: Mapping[int, RowLayout] = field(default_factory=dict[int, RowLayout])

    def scores(self, values: Mapping[int, Tensor]) -> Tensor:
        """Both streams' scores (2, rows), from the values, stacked."""
        scores, rows = self.constant.expand(2, -1), len(self.constant)
        for index, gradient in self.gradients.items():
            layout = self.layouts.get(index, FIRST)
            products = by_stream(values[index]) * gradient
            scores = scores + torch.stack([layout.by_row(p, rows).sum(1) for p in products])
        return scores

    def seeded(self, seeds: Tensor) -> dict[int, Tensor]:
        """The gradient in each value of what the loss asks, one stream's number a row."""
        return {
            index: self.layouts.get(index, FIRST).spread(seeds, part.dim()) * part
            for index, part in self.gradients.items()
        }


def tail_steps(frozen: FrozenGraph) -> list[Step]:
    """The steps from which no site is reached."""
    before_a_site: set[int] = set()
    steps: list[Step] = []
    for step in reversed(frozen.steps):
        if step.site is not None or step.output in before_a_site:
            before_a_site.update(step.reads)
        else:
            steps.append(step)
    return steps[::-1]


def read_by(steps: Sequence[Step], frozen: FrozenGraph) -> list[int]:
    """The values that some last steps read of others; the result itself where there are none."""
    made = {step.output for step in steps}
    reads = [index for step in steps for index in step.reads if index not in made]
    return list(dict.fromkeys(reads)) if frozen.result in made else [frozen.result]


@torch.enable_grad()
def tail_of(net: LinearNetwork, steps: Sequence[Step], shapes: Mapping[int, Sequence[int]]) -> Tail:
    """The tail, from the shapes of the values it reads: what it gives at zero, and its slope."""
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
class Narrowed:
    """Steps and tail of fewer channels; `channels` are those kept, by the site's name."""

    steps: Mapping[int, Step]
    tail: Tail
    channels: Mapping[str, Tensor]

    def start(self, name: str, logits: Tensor) -> Tensor:
        """Of a site's logits, those of channels kept."""
        kept = self.channels.get(name)
        return logits if kept is None else logits[:, kept]

    def whole(self, name: str, learned: Tensor, start: Tensor | None) -> Tensor:
        """All logits of a site, from those learned and, where it is narrow, where all started."""
        if start is None:
            return learned
        return start.index_copy(1, self.channels[name], learned.to(start.dtype))


def prune_channels(steps: Sequence[Step], tail: Tail, fixed: set[int]) -> Narrowed:
    """What is left of the steps before a tail; `fixed` steps are not touched."""
    changed: dict[int, Step] = {}
    gradients = dict(tail.gradients)
    channels: dict[str, Tensor] = {}
    for gate, convolution in _ends(steps, tail, fixed):
        assert gate.site is not None
        gradient = gradients[gate.output]
        kept = (gradient != 0).any(3).any(2).any(0).nonzero()[:, 0]
        if not 0 < len(kept) < gradient.shape[1]:
            continue
        changed[convolution.output] = _convolution_of(convolution, kept)
        changed[gate.output] = _gate_of(gate, kept)
        gradients[gate.output] = channels_last(gradient[:, kept])
        channels[gate.site.name] = kept
    return Narrowed(changed, replace(tail, gradients=gradients), channels)


def _ends(steps: Sequence[Step], tail: Tail, fixed: set[int]) -> list[tuple[Step, Step]]:
    """Gates that only the tail reads, each with the convolution that only it reads."""
    made = {step.output: step for step in steps if step.output not in fixed}
    readers = Counter(index for step in steps for index in step.reads)
    found: list[tuple[Step, Step]] = []
    for end, gradient in tail.gradients.items():
        gate = made.get(end)
        if gate is None or gate.site is None or readers[end] > 0 or gradient.dim() != 4:
            continue
        convolution = made.get(gate.reads[0])
        if convolution is None or readers[convolution.output] > 1:
            continue
        plain = convolution.operation == CONVOLUTION and not convolution.keywords
        if plain and convolution_arguments(convolution)[-1] == 1:
            found.append((gate, convolution))
    return found


def _convolution_of(step: Step, kept: Tensor) -> Step:
    weight, bias, *rest = convolution_arguments(step)
    bias = None if bias is None else bias[kept]
    arguments = [step.arguments[0], weight[kept], bias, *rest]
    return replace(step, arguments=arguments, shape=_fewer(step, kept))


def _gate_of(step: Step, kept: Tensor) -> Step:
    piece = step.function
    assert isinstance(piece, ElementwiseLine)

    def part(tensor: Tensor) -> Tensor:
        return tensor[:, kept] if tensor.dim() == 4 and tensor.shape[1] > 1 else tensor

    offset = None if piece.offset is None else part(piece.offset)
    return replace(
        step, function=ElementwiseLine(part(piece.slope), offset), shape=_fewer(step, kept)
    )


def _fewer(step: Step, kept: Tensor) -> tuple[int, ...]:
    assert step.shape is not None
    return (step.shape[0], len(kept), *step.shape[2:])
