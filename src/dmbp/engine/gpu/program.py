"""The GPU engine's program: what runs at every iteration, forward on both streams and back.

An instruction reads some values and puts one out; going back it is handed the parts of its
result's gradient, and the tail's share where the score reads that result.

One iteration of the GPU engine: its program forward, the scores, and its program back.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dmbp.engine.gpu.lanes import (
    LONGEST,
    OneByOne,
    Order,
    SideBySide,
    Turn,
    longest_chain,
    turns,
)
from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.state import (
    GradientRange,
    LearningState,
    Shared,
    Split,
    StreamGradient,
    seeded,
)
from dmbp.engine.plan.operations import Operation
from dmbp.engine.plan.plan import add_gradients, last_reads, transpose_both
from dmbp.engine.plan.streams import Value, channels_last, stacked


class GpuSite(Protocol):
    """A site with what is merged into it."""

    @property
    def logits(self) -> Tensor:
        """The learned scalars as they stand."""
        ...

    def past(self, gradient: Tensor, slope: Tensor, seen: GradientRange | None) -> Tensor:
        """Both streams' gradients, stacked and in single precision, past gate and masks."""
        ...

    def forward(self, terms: Sequence[Any]) -> Tensor:
        """Both streams past it."""
        ...

    def backward(self, gradient: StreamGradient, *, goes_on: bool) -> Tensor | None:
        """The gradient in what is read, where it `goes_on`; the masks descend."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """An operation that makes what runs it when it is first run, unless it is told to."""

    def prepare(self) -> None:
        """Make it now."""
        ...


class SiteInstruction:
    """A site and what is merged into it."""

    def __init__(self, merged: Merged, site: GpuSite, *, goes_on: bool) -> None:
        self.reads = list(merged.terms)
        self.output = merged.output
        self.site = site
        self._goes_on = goes_on

    def forward(self, values: Mapping[int, Any]) -> Tensor:
        """Both streams past it."""
        return self.site.forward([_tensor(values[index]) for index in self.reads])

    def backward(self, gradient: StreamGradient) -> Sequence[Tensor | None]:
        """The gradient in each value read; the masks descend."""
        found = self.site.backward(gradient, goes_on=self._goes_on)
        return [found] * len(self.reads)


class PlainInstruction:
    """An affine operation."""

    def __init__(self, operation: Operation, output: int, learning: LearningState) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation
        self._learning = learning

    def prepare(self) -> None:
        """Make of weights what iterations run, where that is not done yet."""
        if isinstance(self.operation, Preparing):
            self.operation.prepare()

    def forward(self, values: Mapping[int, Any]) -> Value | Split:
        """Both streams' result."""
        return self.operation.forward([both_streams(values[index]) for index in self.reads])

    def backward(self, gradient: StreamGradient) -> Sequence[Any]:
        """The gradient in each value read."""
        parts: list[Any] = list(gradient.parts)
        if gradient.tail is not None:
            parts.append(seeded(gradient.tail, self._learning))
        total = parts[0]
        for part in parts[1:]:
            total = add_gradients(total, part)
        if self._learning.is_both:
            return transpose_both(self.operation, total)
        return self.operation.transpose(total)


GpuInstruction = SiteInstruction | PlainInstruction


def both_streams(value: Any) -> Value:
    """A value of both streams, where x alone decides it too."""
    if isinstance(value, Shared):
        return torch.cat([value.value, value.value])
    return value


def _tensor(value: Any) -> Tensor | Shared | Split:
    return value if isinstance(value, Shared | Split) else stacked(value)


class Scores(Protocol):
    """What the values at the end of the program amount to."""

    def update(self, values: Mapping[int, Tensor]) -> None:
        """Set the terms of the iteration and the seeds of its way back."""
        ...


class Iteration:
    """A program that can be run, and what it begins and ends with.

    `constants` are values that x alone decides, `tail` the score's gradients in those at the end.
    """

    def __init__(
        self,
        program: Sequence[GpuInstruction],
        constants: Mapping[int, Any],
        tail: Mapping[int, Tensor],
        scores: Scores,
        *,
        dtype: torch.dtype,
    ) -> None:
        self._program = program
        self._constants = constants
        self._tail = tail
        self._scores = scores
        self._dtype = dtype
        self._finished = last_reads(program, set(tail))
        self._forward_turns, self._back_turns = _turns_of(program)

    @property
    def lanes(self) -> int:
        """How many streams it is faster on; one where branches are few or short."""
        both = [*self._forward_turns, *self._back_turns]
        longest = longest_chain(self._forward_turns) + longest_chain(self._back_turns)
        if longest > LONGEST * len(both):
            return 1
        return 1 + max((turn.lane for turn in both), default=0)

    def run(self, streams: Sequence[torch.cuda.Stream] = ()) -> None:
        """Forward and back; on streams, of which the first is the current one, side by side."""
        order = _order(self._forward_turns, streams)
        self._scores.update(self._forward(order))
        self._backward(_order(self._back_turns, streams))

    def _forward(self, order: Order) -> dict[int, Tensor]:
        """The values at the end."""
        values: dict[int, Any] = dict(self._constants)
        for place, instruction in enumerate(self._program):
            with order.turn(place):
                values[instruction.output] = instruction.forward(values)
            order.keep(values[instruction.output])
            for index in self._finished[place]:
                del values[index]
        order.meet()
        return {k: channels_last(stacked(both_streams(values[k]))) for k in self._tail}

    def _backward(self, order: Order) -> None:
        """The masks descend."""
        gradients: dict[int, list[Any]] = {}
        for place, instruction in enumerate(reversed(self._program)):
            parts = gradients.pop(instruction.output, [])
            tail = self._tail.get(instruction.output)
            if not parts and tail is None:
                continue
            with order.turn(place):
                found = self._back(instruction, parts, tail)
            order.keep(found)
            for index, part in zip(instruction.reads, found, strict=True):
                if index not in self._constants and part is not None:
                    gradients.setdefault(index, []).append(part)
        order.meet()

    def _back(
        self, instruction: GpuInstruction, parts: list[Any], tail: Tensor | None
    ) -> Sequence[Any]:
        if isinstance(instruction, SiteInstruction):
            return instruction.backward(_at_most_two(parts, tail, self._dtype))
        return instruction.backward(StreamGradient(parts, tail))


def _order(turns: Sequence[Turn], streams: Sequence[torch.cuda.Stream]) -> Order:
    return SideBySide(turns, streams) if streams else OneByOne()


def _turns_of(program: Sequence[GpuInstruction]) -> tuple[list[Turn], list[Turn]]:
    """Turns of the program's instructions forward, and of the same in reverse on the way back."""
    places = {instruction.output: place for place, instruction in enumerate(program)}
    needs = [
        [places[index] for index in dict.fromkeys(instruction.reads) if index in places]
        for instruction in program
    ]
    last = len(program) - 1
    needs_back: list[list[int]] = [[] for _ in program]
    for reader, needed in enumerate(needs):
        for place in needed:
            needs_back[last - place].append(last - reader)
    return turns(needs), turns(needs_back)


def _at_most_two(parts: list[Any], tail: Tensor | None, dtype: torch.dtype) -> StreamGradient:
    """A gradient of two parts, of which one may be split."""
    split, *more = [part for part in parts if isinstance(part, Split)] or [None]
    whole = [stacked(part) for part in parts if not isinstance(part, Split)]
    whole += [part.whole(dtype) for part in more if part is not None]
    most = 2 if split is None else 1
    while len(whole) > most:
        whole = [whole[0] + whole[1], *whole[2:]]
    return StreamGradient(whole, tail, split)
