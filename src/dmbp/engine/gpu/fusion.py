"""Operator fusion: which neighbouring steps a gate's kernel computes in its own pass over memory.

Before the gate, these are a convolution's bias, a sum of two values, or a batch norm that could not
be folded into a convolution; after the gate, a max-pooling. A step is fused only if nothing else
reads the value between it and the gate.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.engine.plan.kernels import Pooling, square_windows
from dmbp.engine.plan.rewrites import (
    BATCH_NORM,
    CONVOLUTION,
    convolution_arguments,
    scale_and_shift,
)
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import LinearStep, Slot


@dataclass(frozen=True)
class FusedGate:
    """A gate and the steps fused into it.

    Attributes:
        gate: The gate, which is applied to scale · terms[0] + terms[1] + shift.
        terms: The indices of the one or two values that the kernel reads.
        scale: A factor for each channel, from a batch norm.
        shift: A summand for each channel, from biases or a batch norm.
        pooling: The max-pooling after the gate.
    """

    gate: LinearStep
    terms: tuple[int, ...]
    scale: Tensor | None = None
    shift: Tensor | None = None
    pooling: Pooling | None = None

    @property
    def output(self) -> int:
        """The index of the value that the fused kernel writes."""
        return self.gate.output if self.pooling is None else self.pooling.step.output


@dataclass(frozen=True)
class FusionPlan:
    """Which steps are fused into which gates.

    Attributes:
        gates: The fused gates, by the index of the gate's own output.
        absorbed: The outputs of steps that no longer run separately.
        unbiased: The outputs of convolutions that run without their bias.
    """

    gates: Mapping[int, FusedGate]
    absorbed: Set[int]
    unbiased: Set[int]


class _FusionPlanner:
    """Fuses steps into one gate after another, and collects the absorbed steps."""

    def __init__(self, steps: Sequence[LinearStep], fixed: Set[int], *, pooling: bool) -> None:
        self._fuses_pooling = pooling
        self._shapes = {step.output: step.shape for step in steps}
        self._fixed = fixed
        self._producers = {step.output: step for step in steps if step.output not in fixed}
        self._reader_counts = Counter(index for step in steps for index in step.reads)
        self._reader = {index: step for step in steps for index in step.reads}
        self.absorbed: set[int] = set()
        self.unbiased: set[int] = set()

    def fuse(self, gate: LinearStep) -> FusedGate:
        """Return a gate with all steps that can be fused into it."""
        pooling = self._take_pooling(gate)
        index = gate.reads[0]
        step = self._exclusive_producer(index)
        if step is None:
            return FusedGate(gate, (index,), pooling=pooling)
        by_channel = len(self._shapes[index] or ()) in (2, 4)
        if step.operation == BATCH_NORM and by_channel and len(step.reads) == 1 and not pooling:
            self.absorbed.add(index)
            scale, shift = scale_and_shift(step)
            return FusedGate(gate, (step.reads[0],), scale, shift)
        if self._is_sum(step) and pooling is None:
            self.absorbed.add(index)
            shifts = [bias for term in step.reads if (bias := self._take_bias(term)) is not None]
            shift = sum(shifts[1:], shifts[0]) if shifts else None
            return FusedGate(gate, tuple(step.reads), shift=shift)
        return FusedGate(gate, (index,), shift=self._take_bias(index), pooling=pooling)

    def _exclusive_producer(self, index: int) -> LinearStep | None:
        """Return the step that computes a value if the value has a single reader, else None."""
        return self._producers.get(index) if self._reader_counts[index] == 1 else None

    def _take_bias(self, index: int) -> Tensor | None:
        """Remove and return the bias of the convolution that computes a value; None without one."""
        step = self._exclusive_producer(index)
        if step is None or step.operation != CONVOLUTION or step.keywords:
            return None
        bias = convolution_arguments(step)[1]
        if bias is not None:
            self.unbiased.add(index)
        return bias

    def _is_sum(self, step: LinearStep) -> bool:
        """Return whether a step adds two values of the same shape."""
        slots = len(step.arguments) == 2 and all(isinstance(a, Slot) for a in step.arguments)
        plain = step.operation == "aten.add.Tensor" and slots and not step.keywords
        shapes = {self._shapes.get(index) for index in (*step.reads, step.output)}
        return plain and len(shapes) == 1

    def _take_pooling(self, gate: LinearStep) -> Pooling | None:
        """Absorb and return the max-pooling after a ReLU if nothing else reads the ReLU."""
        is_only_reader = self._reader_counts[gate.output] == 1 and gate.output not in self._fixed
        if not is_only_reader or not self._fuses_pooling:
            return None
        step = self._reader[gate.output]
        pooling = square_windows(step)
        if pooling is None or not _is_relu(gate):
            return None
        self.absorbed.add(step.output)
        return pooling


def _is_relu(gate: LinearStep) -> bool:
    """Return whether a gate's slope is 0 or 1 everywhere, without offsets."""
    line = gate.function
    return (
        isinstance(line, ElementwiseLine) and line.slope.dtype == torch.bool and line.offset is None
    )


def plan_fusion(steps: Sequence[LinearStep], fixed: Set[int], *, pooling: bool) -> FusionPlan:
    """Decide what is fused into each gate.

    Args:
        steps: The program's steps in order.
        fixed: Indices of values that must be written to memory: constants and the tail's inputs.
        pooling: Whether max-pooling may be fused.
    """
    planner = _FusionPlanner(steps, fixed, pooling=pooling)
    gates = {step.output: planner.fuse(step) for step in steps if step.site is not None}
    return FusionPlan(gates, planner.absorbed, planner.unbiased)
