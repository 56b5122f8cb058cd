"""The GPU engine's program: the instructions of one iteration, and how they are run.

An instruction reads values by index and computes one, for both streams at once. Going back, it gets
the gradient in its output and returns the gradient in each value it read; a site also takes
RMSProp's step there. `Iteration` runs all instructions forward, lets the loss head turn the last
values into terms and seeds, and runs the instructions in reverse. Everything it launches can be
captured as a CUDA graph: no tensor is read by the CPU.
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
        """The current value of the learned scalars."""
        ...

    def pass_gradient(
        self, gradient: Tensor, slope: Tensor, gradient_range: GradientRange | None
    ) -> Tensor:
        """Pass both streams' gradients through the gate and its masks, for the read-out.

        Args:
            gradient: The scores' gradients in the gate's output, stacked and in float32.
            slope: The gate's slope at x.
            gradient_range: Records how the gradients fit into float16, if given.
        """
        ...

    def forward(self, terms: Sequence[Any]) -> Tensor:
        """Compute both streams' output from the terms that the fused gate adds up."""
        ...

    def backward(self, gradient: StreamGradient, *, needs_input_gradient: bool) -> Tensor | None:
        """Take RMSProp's step, and return the gradient in each term if it is needed."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """An operation that otherwise converts its weights when it first runs."""

    def prepare(self) -> None:
        """Convert the weights now."""
        ...


class SiteInstruction:
    """A site."""

    def __init__(self, fused: FusedGate, site: GpuSite, *, needs_input_gradient: bool) -> None:
        self.reads = list(fused.terms)
        self.output = fused.output
        self.site = site
        self._needs_input_gradient = needs_input_gradient

    def forward(self, values: Mapping[int, Any]) -> Tensor:
        """Compute both streams' output."""
        return self.site.forward([_tensor(values[index]) for index in self.reads])

    def backward(self, gradient: StreamGradient) -> Sequence[Tensor | None]:
        """Take RMSProp's step, and return the gradient in each value read."""
        input_gradients = self.site.backward(
            gradient, needs_input_gradient=self._needs_input_gradient
        )
        return [input_gradients] * len(self.reads)


class AffineInstruction:
    """An affine operation without masks."""

    def __init__(self, operation: Operation, output: int, learning: LearningState) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation
        self._learning = learning

    def prepare(self) -> None:
        """Convert the operation's weights, unless that has been done."""
        if isinstance(self.operation, Preparable):
            self.operation.prepare()

    def forward(self, values: Mapping[int, Any]) -> Value | SplitSum:
        """Compute both streams' output."""
        return self.operation.forward([both_streams(values[index]) for index in self.reads])

    def backward(self, gradient: StreamGradient) -> Sequence[Any]:
        """Return the gradient in each value read."""
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
    """Return a value that depends on x alone, in the dtype and unit of an iteration."""
    converted = cast_value(value * unit if isinstance(value, Tensor) else value, dtype)
    return (
        SharedValue(channels_last(converted))
        if isinstance(converted, Tensor)
        else StreamPair(converted, converted)
    )


def both_streams(value: Any) -> Value:
    """Return a value stacked for both streams, also if it is shared by them."""
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
        tail: The score's gradient in each value that the tail reads, by index.
        loss_head: Turns these values into terms and seeds.
        dtype: The dtype of activations and gradients.
    """

    def __init__(
        self,
        program: Sequence[GpuInstruction],
        constants: Mapping[int, Any],
        tail: Mapping[int, Tensor],
        loss_head: LossHead,
        *,
        dtype: torch.dtype,
    ) -> None:
        self._program = program
        self._constants = constants
        self._tail = tail
        self._loss_head = loss_head
        self._dtype = dtype
        self._finished = last_reads(program, set(tail))
        self._forward_slots, self._backward_slots = _lane_slots(program)

    @property
    def lanes(self) -> int:
        """The number of lanes it runs fastest on: one if branches are few or short."""
        both = [*self._forward_slots, *self._backward_slots]
        longest = longest_chain(self._forward_slots) + longest_chain(self._backward_slots)
        if longest > MAX_CHAIN_SHARE * len(both):
            return 1
        return 1 + max((slot.lane for slot in both), default=0)

    def run(self, streams: Sequence[torch.cuda.Stream] = ()) -> None:
        """Run the iteration, on several lanes if CUDA streams are given.

        The first of them must be the current stream.
        """
        scheduler = _scheduler(self._forward_slots, streams)
        self._loss_head.update(self._forward(scheduler))
        self._backward(_scheduler(self._backward_slots, streams))

    def _forward(self, scheduler: Scheduler) -> dict[int, Tensor]:
        """Return the values that the tail reads, stacked."""
        values: dict[int, Any] = dict(self._constants)
        for position, instruction in enumerate(self._program):
            with scheduler.running(position):
                values[instruction.output] = instruction.forward(values)
            scheduler.keep_alive(values[instruction.output])
            for index in self._finished[position]:
                del values[index]
        scheduler.join()
        return {k: channels_last(stacked(both_streams(values[k]))) for k in self._tail}

    def _backward(self, scheduler: Scheduler) -> None:
        """Propagate the seeds back; every site updates its masks on the way."""
        gradients: dict[int, list[Any]] = {}
        for position, instruction in enumerate(reversed(self._program)):
            parts = gradients.pop(instruction.output, [])
            tail = self._tail.get(instruction.output)
            if not parts and tail is None:
                continue
            with scheduler.running(position):
                input_gradients = self._back(instruction, parts, tail)
            scheduler.keep_alive(input_gradients)
            for index, part in zip(instruction.reads, input_gradients, strict=True):
                if index not in self._constants and part is not None:
                    gradients.setdefault(index, []).append(part)
        scheduler.join()

    def _back(
        self, instruction: GpuInstruction, parts: list[Any], tail: Tensor | None
    ) -> Sequence[Any]:
        if isinstance(instruction, SiteInstruction):
            return instruction.backward(_at_most_two(parts, tail, self._dtype))
        return instruction.backward(StreamGradient(parts, tail))


def _scheduler(slots: Sequence[LaneSlot], streams: Sequence[torch.cuda.Stream]) -> Scheduler:
    return LaneScheduler(slots, streams) if streams else SequentialScheduler()


def _lane_slots(program: Sequence[GpuInstruction]) -> tuple[list[LaneSlot], list[LaneSlot]]:
    """Assign lanes to the program's instructions, and to the same in reverse order."""
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


def _at_most_two(parts: list[Any], tail: Tensor | None, dtype: torch.dtype) -> StreamGradient:
    """Add parts up until two are left, of which one may be split: what a site's kernel takes."""
    split, *more = [part for part in parts if isinstance(part, SplitSum)] or [None]
    whole = [stacked(part) for part in parts if not isinstance(part, SplitSum)]
    whole += [part.total(dtype) for part in more if part is not None]
    most = 2 if split is None else 1
    while len(whole) > most:
        whole = [whole[0] + whole[1], *whole[2:]]
    return StreamGradient(whole, tail, split)
