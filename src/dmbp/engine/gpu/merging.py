"""What a site can do in the same pass over memory: its neighbours in the graph, merged into it.

Before it a bias, a sum of two values, a batch norm that no convolution took in; after it a
max-pooling. What is merged has no other reader.
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
from dmbp.linear.steps import Slot, Step


@dataclass(frozen=True)
class Merged:
    """A gate that reads scale · terms[0] + terms[1] + shift, and the pooling behind it."""

    gate: Step
    terms: tuple[int, ...]
    scale: Tensor | None = None
    shift: Tensor | None = None
    pooling: Pooling | None = None

    @property
    def output(self) -> int:
        """What is put out in the end."""
        return self.gate.output if self.pooling is None else self.pooling.step.output


@dataclass(frozen=True)
class Merging:
    """Gates by their output; steps that are gone, and convolutions whose bias is."""

    gates: Mapping[int, Merged]
    gone: Set[int]
    unbiased: Set[int]


class _Merger:
    def __init__(
        self,
        steps: Sequence[Step],
        fixed: Set[int],
        *,
        pooling: bool,
    ) -> None:
        self._merges_pooling = pooling
        self._shapes = {step.output: step.shape for step in steps}
        self._fixed = fixed
        self._made = {step.output: step for step in steps if step.output not in fixed}
        self._readers = Counter(index for step in steps for index in step.reads)
        self._reader = {index: step for step in steps for index in step.reads}
        self.gone: set[int] = set()
        self.unbiased: set[int] = set()

    def merged(self, gate: Step) -> Merged:
        """A gate with its neighbours."""
        pooling = self._pooling(gate)
        read = gate.reads[0]
        step = self._alone(read)
        if step is None:
            return Merged(gate, (read,), pooling=pooling)
        by_channel = len(self._shapes[read] or ()) in (2, 4)
        if step.operation == BATCH_NORM and by_channel and len(step.reads) == 1 and not pooling:
            self.gone.add(read)
            scale, shift = scale_and_shift(step)
            return Merged(gate, (step.reads[0],), scale, shift)
        if self._is_sum(step) and pooling is None:
            self.gone.add(read)
            shifts = [shift for index in step.reads if (shift := self._bias(index)) is not None]
            shift = sum(shifts[1:], shifts[0]) if shifts else None
            return Merged(gate, tuple(step.reads), shift=shift)
        return Merged(gate, (read,), shift=self._bias(read), pooling=pooling)

    def _alone(self, index: int) -> Step | None:
        """The step that made a value for one reader."""
        return self._made.get(index) if self._readers[index] == 1 else None

    def _bias(self, index: int) -> Tensor | None:
        """The bias of the convolution that made a value, which is no longer its own."""
        step = self._alone(index)
        if step is None or step.operation != CONVOLUTION or step.keywords:
            return None
        bias = convolution_arguments(step)[1]
        if bias is not None:
            self.unbiased.add(index)
        return bias

    def _is_sum(self, step: Step) -> bool:
        """Whether a step adds two values of one shape."""
        slots = len(step.arguments) == 2 and all(isinstance(a, Slot) for a in step.arguments)
        plain = step.operation == "aten.add.Tensor" and slots and not step.keywords
        shapes = {self._shapes.get(index) for index in (*step.reads, step.output)}
        return plain and len(shapes) == 1

    def _pooling(self, gate: Step) -> Pooling | None:
        alone = self._readers[gate.output] == 1 and gate.output not in self._fixed
        if not alone or not self._merges_pooling:
            return None
        step = self._reader[gate.output]
        pooling = square_windows(step)
        if pooling is None or not _is_relu(gate):
            return None
        self.gone.add(step.output)
        return pooling


def _is_relu(gate: Step) -> bool:
    """Whether a gate is open or closed and nothing else."""
    piece = gate.function
    return (
        isinstance(piece, ElementwiseLine)
        and piece.slope.dtype == torch.bool
        and piece.offset is None
    )


def merging_of(steps: Sequence[Step], fixed: Set[int], *, pooling: bool) -> Merging:
    """What to merge into each gate, max-pooling too where `pooling`.

    `fixed` are values that someone else needs: what x alone decides, what the tail reads.
    """
    merger = _Merger(steps, fixed, pooling=pooling)
    gates = {step.output: merger.merged(step) for step in steps if step.site is not None}
    return Merging(gates, merger.gone, merger.unbiased)
