"""The GPU engine's program: the instructions of one iteration, and how they are run.

An instruction reads values by index and computes one, for both streams at once. In the backward
pass it receives the gradient with respect to its output and returns the gradient with respect to
each value it read; a site also updates its masks with an RMSProp step. `Iteration` runs all
instructions forward, lets the loss head turn the last values into terms and seeds, and runs the
instructions in reverse. The CPU never reads a tensor, so an iteration can be captured as a CUDA
graph.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.half_precision import GradientRange, cast_value
from dmbp.engine.gpu.lanes import (
    MAX_CHAIN_SHARE,
    LaneScheduler,
    LaneSlot,
    Scheduler,
    SequentialScheduler,
    assign_lanes,
    longest_chain,
)
from dmbp.engine.gpu.learning_state import (
    LearningState,
    SharedValue,
    SplitSum,
    StreamGradient,
    seeded_gradient,
)
from dmbp.engine.plan.operations import Operation
from dmbp.engine.plan.plan import add_gradients, last_reads, transpose_both
from dmbp.engine.plan.streams import StreamPair, Value, channels_last, stacked


class GpuSite(Protocol):
    """A gate with its masks, and the steps fused into it."""

    @property
    def logits(self) -> Tensor:
        """The current mask logits."""
        ...

    def pass_gradient(
        self, gradient: Tensor, slope: Tensor, gradient_range: GradientRange | None
    ) -> Tensor:
        """Pass both streams' gradients through the gate and its masks, for the read-out.

        Args:
            gradient: The scores' gradients with respect to the gate's output, stacked and in
                float32.
            slope: The gate's slope at x.
            gradient_range: Records how the gradients fit into float16, if given.
        """
        ...

    def forward(self, terms: Sequence[Any]) -> Tensor:
        """Return both streams' output, given the terms that the fused gate adds up."""
        ...

    def backward(self, gradient: StreamGradient, *, needs_input_gradient: bool) -> Tensor | None:
        """Take an RMSProp step; return the gradient with respect to each term if needed."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """An operation whose weights can be converted before it first runs."""

    def prepare(self) -> None:
        """Convert the weights now."""
        ...


class SiteInstruction:
    """Runs one site: a gate, its masks and the steps fused into it."""

    def __init__(self, fused: FusedGate, site: GpuSite, *, needs_input_gradient: bool) -> None:
        self.reads = list(fused.terms)
        self.output = fused.output
        self.site = site
        self._needs_input_gradient = needs_input_gradient

    def forward(self, values: Mapping[int, Any]) -> Tensor:
        """Return both streams' output."""
        return self.site.forward([_tensor(values[index]) for index in self.reads])

    def backward(self, gradient: StreamGradient) -> Sequence[Tensor | None]:
        """Take an RMSProp step, and return the gradient with respect to each value read."""
        input_gradients = self.site.backward(
            gradient, needs_input_gradient=self._needs_input_gradient
        )
        return [input_gradients] * len(self.reads)


class AffineInstruction:
    """Runs one affine operation, which has no masks."""

    def __init__(self, operation: Operation, output: int, learning: LearningState) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation
        self._learning = learning

    def prepare(self) -> None:
        """Convert the operation's weights, unless that has been done or is not needed."""
        if isinstance(self.operation, Preparable):
            self.operation.prepare()

    def forward(self, values: Mapping[int, Any]) -> Value | SplitSum:
        """Return both streams' output."""
        return self.operation.forward([stack_streams(values[index]) for index in self.reads])

    def backward(self, gradient: StreamGradient) -> Sequence[Any]:
        """Return the gradient with respect to each value read."""
        parts: list[Any] = list(gradient.parts)
        if gradient.tail is not None:
            parts.append(seeded_gradient(gradient.tail, self._learning))
        total = parts[0]
        for part in parts[1:]:
            total = add_gradients(total, part)
        if self._learning.touches_both_streams:
            return transpose_both(self.operation, total)
        return self.operation.transpose(total)


GpuInstruction = SiteInstruction | AffineInstruction


def constant_value(value: Any, dtype: torch.dtype, unit: float) -> SharedValue | StreamPair:
    """Return a value that depends on x alone, cast to `dtype` and multiplied by `unit`."""
    converted = cast_value(value * unit if isinstance(value, Tensor) else value, dtype)
    return (
        SharedValue(channels_last(converted))
        if isinstance(converted, Tensor)
        else StreamPair(converted, converted)
    )


def stack_streams(value: Any) -> Value:
    """Return both streams' value, repeating it if the streams share it."""
    if isinstance(value, SharedValue):
        return value.stacked()
    return value


def _tensor(value: Any) -> Tensor | SharedValue | SplitSum:
    return value if isinstance(value, SharedValue | SplitSum) else stacked(value)


class LossHead(Protocol):
    """Turns the last values of the forward pass into terms and seeds."""

    def update(self, values: Mapping[int, Tensor]) -> None:
        """Write the iteration's terms, seeds and active streams into the state, and count it."""
        ...


class Iteration:
    """One iteration: the program forward, the loss head, the program in reverse.

    Args:
        program: The instructions in order.
        constants: Values that depend on x alone, by index.
        tail_gradients: The score's gradient with respect to each value that the tail reads, by
            index.
        loss_head: Turns the values that the tail reads into terms and seeds.
        dtype: The dtype of activations and gradients.
    """

    def __init__(
        self,
        program: Sequence[GpuInstruction],
        constants: Mapping[int, Any],
        tail_gradients: Mapping[int, Tensor],
        loss_head: LossHead,
        *,
        dtype: torch.dtype,
    ) -> None:
        self._program = program
        self._constants = constants
        self._tail_gradients = tail_gradients
        self._loss_head = loss_head
        self._dtype = dtype
        self._finished = last_reads(program, set(tail_gradients))
        self._forward_slots, self._backward_slots = _lane_slots(program)

    @property
    def lanes(self) -> int:
        """The number of lanes to run on: one if branches are few or short."""
        both = [*self._forward_slots, *self._backward_slots]
        longest = longest_chain(self._forward_slots) + longest_chain(self._backward_slots)
        if longest > MAX_CHAIN_SHARE * len(both):
            return 1
        return 1 + max((slot.lane for slot in both), default=0)

    def run(self, streams: Sequence[torch.cuda.Stream] = ()) -> None:
        """Run the iteration, on one lane per CUDA stream if any are passed.

        The first stream must be the current one.
        """
        scheduler = _scheduler(self._forward_slots, streams)
        self._loss_head.update(self._forward(scheduler))
        self._backward(_scheduler(self._backward_slots, streams))

    def _forward(self, scheduler: Scheduler) -> dict[int, Tensor]:
        """Run all instructions, and return the values that the tail reads, stacked."""
        values: dict[int, Any] = dict(self._constants)
        for position, instruction in enumerate(self._program):
            with scheduler.running(position):
                values[instruction.output] = instruction.forward(values)
            scheduler.keep_alive(values[instruction.output])
            for index in self._finished[position]:
                del values[index]
        scheduler.join()
        return {k: channels_last(stacked(stack_streams(values[k]))) for k in self._tail_gradients}

    def _backward(self, scheduler: Scheduler) -> None:
        """Propagate the seeds back; every site updates its masks on the way."""
        gradients: dict[int, list[Any]] = {}
        for position, instruction in enumerate(reversed(self._program)):
            parts = gradients.pop(instruction.output, [])
            tail_gradient = self._tail_gradients.get(instruction.output)
            if not parts and tail_gradient is None:
                continue
            with scheduler.running(position):
                input_gradients = self._backward_through(instruction, parts, tail_gradient)
            scheduler.keep_alive(input_gradients)
            for index, part in zip(instruction.reads, input_gradients, strict=True):
                if index not in self._constants and part is not None:
                    gradients.setdefault(index, []).append(part)
        scheduler.join()

    def _backward_through(
        self, instruction: GpuInstruction, parts: list[Any], tail_gradient: Tensor | None
    ) -> Sequence[Any]:
        if isinstance(instruction, SiteInstruction):
            return instruction.backward(_sum_to_two(parts, tail_gradient, self._dtype))
        return instruction.backward(StreamGradient(parts, tail_gradient))


def _scheduler(slots: Sequence[LaneSlot], streams: Sequence[torch.cuda.Stream]) -> Scheduler:
    return LaneScheduler(slots, streams) if streams else SequentialScheduler()


def _lane_slots(program: Sequence[GpuInstruction]) -> tuple[list[LaneSlot], list[LaneSlot]]:
    """Return the lane slots of a program's instructions, in order and in reverse order."""
    positions = {instruction.output: position for position, instruction in enumerate(program)}
    needs = [
        [positions[index] for index in dict.fromkeys(instruction.reads) if index in positions]
        for instruction in program
    ]
    last = len(program) - 1
    needs_back: list[list[int]] = [[] for _ in program]
    for reader, needed in enumerate(needs):
        for position in needed:
            needs_back[last - position].append(last - reader)
    return assign_lanes(needs), assign_lanes(needs_back)


def _sum_to_two(
    parts: list[Any], tail_gradient: Tensor | None, dtype: torch.dtype
) -> StreamGradient:
    """Add up parts until at most two are left, one of which may be split.

    A site's kernel takes no more.
    """
    split, *more = [part for part in parts if isinstance(part, SplitSum)] or [None]
    whole = [stacked(part) for part in parts if not isinstance(part, SplitSum)]
    whole += [part.total(dtype) for part in more if part is not None]
    max_whole = 2 if split is None else 1
    while len(whole) > max_whole:
        whole = [whole[0] + whole[1], *whole[2:]]
    return StreamGradient(whole, tail_gradient, split)
