"""The engine for CPUs: channels-last memory, merged operations, no autograd graph.

Compared with the autograd engine, it folds batch norm, computes everything before the first mask
once, runs both streams as one batch, multiplies masks inside the convolutions, passes back the
gradient of one stream per row, and touches each mask's memory once per iteration. Operations
without a fast implementation run as in the autograd engine, so it supports every network whose rows
are known; results agree up to rounding.

The plan becomes a program of instructions. An instruction reads values and writes one. In the
backward pass it receives the gradient with respect to that value, for each row in the stream whose
seed is not zero.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.base import Logits, Loss, OnIteration, Readout, Terms, learn_by_steps
from dmbp.engine.cpu.site import MaskedSite, PooledSite, RowLayoutSite
from dmbp.engine.plan.operations import (
    ConcatenationOperation,
    ConvolutionOperation,
    GatherOperation,
    Operation,
    ScaleOperation,
    SumOperation,
)
from dmbp.engine.plan.plan import ExecutionPlan, PlannedStep, add_gradients, last_reads
from dmbp.engine.plan.streams import ROWS_FIRST, Value, channels_last, stacked
from dmbp.engine.readout import gate_with_masks, read_out
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather
from dmbp.linear.steps import LinearStep


class GateInstruction:
    """Applies an activation and its masks."""

    def __init__(self, step: LinearStep, site: MaskedSite) -> None:
        self.reads = step.reads[:1]
        self.output = step.output
        self.site = site

    def forward(self, values: dict[int, Value]) -> Value:
        """Apply the activation and its masks to both streams."""
        return self.site.forward(values[self.reads[0]])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Return the gradient with respect to the input, and update the masks.

        Without `descend`, the gradient of the masks is accumulated instead.
        """
        return [self.site.backward(gradient, streams, descend=descend)]


class MaskedConvolutionInstruction:
    """Applies a convolution that only an activation reads, and the activation's masks."""

    def __init__(self, operation: ConvolutionOperation, step: LinearStep, site: MaskedSite) -> None:
        self.reads = operation.reads
        self.output = step.output
        self.site = site
        self._operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Apply the convolution and the masks to both streams."""
        activation = self._operation.forward([values[self.reads[0]]], self.site.masks)
        return self.site.store(activation)

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Return the gradient with respect to the convolution's input."""
        site_gradient = self.site.backward(gradient, streams, descend=descend)
        return self._operation.transpose(site_gradient)


class PooledInstruction:
    """Applies an activation, its masks and the max-pooling after it.

    `constant` is the activation's input if x alone determines it, else None.
    """

    def __init__(
        self,
        gate: LinearStep,
        pool: LinearStep,
        gather: GatherOperation,
        site: PooledSite,
        constant: Any,
    ) -> None:
        self.reads = gate.reads[:1]
        self.output = pool.output
        self.site = site
        self._gather = gather
        self._winners = None if constant is None else gather.forward([constant])

    def forward(self, values: dict[int, Value]) -> Value:
        """Apply the masks to both streams' winners."""
        winners = self._winners
        if winners is None:
            winners = self._gather.forward([values[self.reads[0]]])
        return self.site.forward(winners)

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Return the gradient with respect to the input, or None if x alone determines it."""
        site_gradient = self.site.backward(gradient, streams, descend=descend)
        return self._gather.transpose(site_gradient) if self._winners is None else [None]


class OperationInstruction:
    """Applies an affine operation without masks."""

    def __init__(self, operation: Operation, output: int) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Return both streams' result."""
        return self.operation.forward([values[index] for index in self.reads])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:  # noqa: ARG002
        """Return the gradient with respect to each value read."""
        return self.operation.transpose(gradient)


CpuInstruction = (
    GateInstruction | MaskedConvolutionInstruction | PooledInstruction | OperationInstruction
)


class CpuEngine:
    """Learns the masks of a linear network on a CPU, starting from `logits`."""

    def __init__(
        self, plan: ExecutionPlan, logits: Logits, *, loss: Loss, learning_rate: float
    ) -> None:
        assert plan.rows_known
        self._plan = plan
        self._net = plan.net
        self._loss = loss
        self._pruned = plan.pruned
        self._initial_logits = {name: logits[name] for name in self._pruned.channels}
        self._sites: dict[str, MaskedSite] = {}
        self._program: list[CpuInstruction] = []
        self._constants: dict[int, Value] = {}
        with torch.no_grad():
            self._output = self._net.score(self._net.frozen.output)
            self._build(logits, learning_rate)

    @property
    def logits(self) -> Logits:
        """The current value of the learned scalars."""
        restore = self._pruned.restore
        return {
            name: restore(name, site.full_logits(), self._initial_logits.get(name))
            for name, site in self._sites.items()
        }

    @torch.no_grad()
    def step(self) -> Terms:
        """Run one iteration of RMSProp and return the terms before it."""
        positive, negative = self._forward()
        terms = Terms(self._output, positive, negative)
        passes = _backward_passes(self._loss.seeds(terms))
        for streams, seed in passes:
            self._backward(streams, seed, descend=len(passes) == 1)
        if len(passes) > 1:
            for site in self._sites.values():
                site.descend()
        return terms

    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Run `iterations` iterations and return the terms before each, (iterations, rows)."""
        return learn_by_steps(self.step, self._output, iterations, on_iteration)

    def readout(self) -> Readout:
        """Return the terms and linear maps at the current masks."""
        logits = self.logits
        at_gate = gate_with_masks(logits, self._plan.kernels)
        return read_out(self._plan, self._output, lambda: logits, at_gate)

    def is_in_range(self, past: Terms) -> bool:  # noqa: ARG002
        """Return True: masks are learned in the network's own precision."""
        return True

    def _build(self, logits: Logits, learning_rate: float) -> None:
        """Turn the plan into a program, and compute the values that x alone determines."""
        program, ends = self._plan.pruned_program, set(self._pruned.tail.gradients)
        images = _image_values(program)
        readers = Counter(index for planned in program for index in planned.reads)
        readers.update(ends)
        values: dict[int, Value] = {
            0: channels_last(torch.cat([self._net.inputs, self._net.inputs]))
        }
        pools = _pooled_gates(program, readers, images)
        merged = {pool.step.output for pool in pools.values()}
        for planned in program:
            step, operation = planned.step, planned.operation
            if step.output in pools:
                self._build_pooled(step, pools[step.output], values, logits, learning_rate)
            elif step.output in merged:
                continue
            elif operation is None:
                is_image = step.output in images
                self._build_gate(planned, readers, logits, learning_rate, is_image=is_image)
            elif planned.is_constant:
                values[step.output] = operation.forward(
                    [values[index] for index in operation.reads]
                )
            else:
                self._program.append(OperationInstruction(operation, step.output))
        read = ends.union(*(instruction.reads for instruction in self._program))
        self._constants = {k: v for k, v in values.items() if k in read}
        self._finished = last_reads(self._program, ends)

    def _build_pooled(
        self,
        step: LinearStep,
        pool: PlannedStep,
        values: dict[int, Value],
        logits: Logits,
        learning_rate: float,
    ) -> None:
        assert isinstance(step.function, ElementwiseLine)
        assert isinstance(pool.step.function, Gather)
        assert isinstance(pool.operation, GatherOperation)
        assert step.site is not None
        initial = logits[step.site.name]
        site = PooledSite(step.function, pool.step.function, initial, learning_rate)
        self._sites[step.site.name] = site
        constant = values.get(step.reads[0])
        self._program.append(PooledInstruction(step, pool.step, pool.operation, site, constant))

    def _build_gate(
        self,
        planned: PlannedStep,
        readers: Counter[int],
        logits: Logits,
        learning_rate: float,
        *,
        is_image: bool,
    ) -> None:
        step, layout = planned.step, planned.layout
        assert isinstance(step.function, ElementwiseLine)
        assert step.site is not None
        assert layout is not None
        initial = self._pruned.select(step.site.name, logits[step.site.name])
        if is_image:
            site = MaskedSite(step.function, initial, learning_rate)
        else:
            rows = len(self._net.inputs)
            site = RowLayoutSite(step.function, initial, learning_rate, layout=layout, rows=rows)
        self._sites[step.site.name] = site
        read = step.reads[0]
        before = next((k for k in self._program if k.output == read), None)
        convolution = before.operation if isinstance(before, OperationInstruction) else None
        can_merge = readers[read] == 1 and site.is_slope_only and is_image
        if isinstance(convolution, ConvolutionOperation) and can_merge:
            self._program = [k for k in self._program if k.output != read]
            self._program.append(MaskedConvolutionInstruction(convolution, step, site))
        else:
            self._program.append(GateInstruction(step, site))

    def _forward(self) -> tuple[Tensor, Tensor]:
        values = dict(self._constants)
        for instruction, finished in zip(self._program, self._finished, strict=True):
            values[instruction.output] = instruction.forward(values)
            for index in finished:
                del values[index]
        tail = self._pruned.tail
        positive, negative = tail.scores({k: stacked(values[k]) for k in tail.gradients})
        return positive, negative

    def _backward(self, streams: list[int], seeds: Tensor, *, descend: bool) -> None:
        gradients: dict[int, Any] = {**self._pruned.tail.seed_gradients(seeds)}
        for instruction in reversed(self._program):
            gradient = gradients.pop(instruction.output, None)
            if gradient is None:
                continue
            parts = instruction.backward(gradient, streams, descend=descend)
            for index, part in zip(instruction.reads, parts, strict=True):
                if index not in self._constants:
                    gradients[index] = add_gradients(gradients.get(index), part)


def _image_values(program: Sequence[PlannedStep]) -> set[int]:
    """Return the indices of values that are batches of images in channels-last order."""
    images: set[int] = {0}
    for planned in program:
        step, operation = planned.step, planned.operation
        if isinstance(operation, ConvolutionOperation | ScaleOperation | GatherOperation):
            images.update(step.reads)
            images.add(step.output)
        elif operation is None or isinstance(operation, SumOperation | ConcatenationOperation):
            images.update([step.output] if images.intersection(step.reads) else [])
    return {
        planned.step.output
        for planned in program
        if planned.step.output in images
        and planned.layout == ROWS_FIRST
        and len(planned.step.shape or ()) == 4
    }


def _pooled_gates(
    program: Sequence[PlannedStep], readers: Counter[int], images: set[int]
) -> dict[int, PlannedStep]:
    """Return the max-poolings that are the only reader of a ReLU, by the ReLU's output."""
    gates = {
        p.step.output: p.step.function
        for p in program
        if p.operation is None and p.step.output in images
    }
    pools: dict[int, PlannedStep] = {}
    for planned in program:
        read = planned.step.reads[0]
        line = gates.get(read)
        if isinstance(planned.operation, GatherOperation) and isinstance(line, ElementwiseLine):
            is_relu = line.slope.dtype == torch.bool and line.offset is None
            if is_relu and readers[read] == 1:
                pools[read] = planned
    return pools


def _backward_passes(seeds: Tensor) -> list[tuple[list[int], Tensor]]:
    """Return backward passes as pairs: the stream of each row, and its seed.

    One pass suffices unless both seeds of a row are non-zero.
    """
    positive, negative = seeds
    first = torch.where(positive != 0, 0, 1)
    passes = [(first.tolist(), torch.where(first == 0, positive, negative))]
    both = (positive != 0) & (negative != 0)
    if bool(both.any()):
        passes.append(([1] * len(first), torch.where(both, negative, 0)))
    return passes
