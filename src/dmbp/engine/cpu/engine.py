"""The CPU engine's program: what runs at every iteration, forward on both streams and back on one.

An instruction reads some values and puts one out; going back it is handed the gradient in that, of
the stream of each row that the loss touches.

The fast engine for CPUs: folded, channels-last, without autograd.

Against the reference engine it folds batch norm, computes what comes before the first mask once,
runs both streams as one batch, multiplies masks inside the convolutions, goes back on one stream a
row, and touches each mask's memory once an iteration. Operations without a path of their own run as
they are in the reference engine, so it takes every network; results agree to rounding.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.base import Logits, Loss, OnIteration, Readout, Terms, learn_by_steps
from dmbp.engine.cpu.site import LaidOutSite, MaskedSite, PooledMaskedSite
from dmbp.engine.plan.operations import (
    ConcatenationOperation,
    ConvolutionOperation,
    GatherOperation,
    Operation,
    ScaleOperation,
    SumOperation,
)
from dmbp.engine.plan.plan import Planned, added, last_reads, plan_of
from dmbp.engine.plan.streams import FIRST, Value, channels_last, stacked
from dmbp.engine.readout import past_masks, read_out
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.choices import Gather
from dmbp.linear.steps import Step


class GateInstruction:
    """An activation and its masks."""

    def __init__(self, step: Step, site: MaskedSite) -> None:
        self.reads = step.reads[:1]
        self.output = step.output
        self.site = site

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams past the masks."""
        return self.site.forward(values[self.reads[0]])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """The gradient in what was read; the masks move or gather."""
        return [self.site.backward(gradient, streams, descend=descend)]


class MaskedConvolutionInstruction:
    """A convolution whose result only an activation reads: masks are multiplied on the way out."""

    def __init__(self, operation: ConvolutionOperation, step: Step, site: MaskedSite) -> None:
        self.reads = operation.reads
        self.output = step.output
        self.site = site
        self._operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams past convolution and masks."""
        found = self._operation.forward([values[self.reads[0]]], self.site.masks)
        return self.site.keep(found)

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Back through the masks and the convolution."""
        past = self.site.backward(gradient, streams, descend=descend)
        return self._operation.transpose(past)


class PooledInstruction:
    """An activation, its masks and the max-pooling behind it."""

    def __init__(
        self, gate: Step, pool: Step, gather: GatherOperation, site: PooledMaskedSite, given: Any
    ) -> None:
        self.reads = gate.reads[:1]
        self.output = pool.output
        self.site = site
        self._gather = gather
        self._winners = None if given is None else gather.forward([given])

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams' winners past the masks."""
        winners = self._winners
        if winners is None:
            winners = self._gather.forward([values[self.reads[0]]])
        return self.site.forward(winners)

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:
        """Back to the winners, where masks came before them."""
        past = self.site.backward(gradient, streams, descend=descend)
        return self._gather.transpose(past) if self._winners is None else [None]


class OperationInstruction:
    """An affine operation."""

    def __init__(self, operation: Operation, output: int) -> None:
        self.reads = operation.reads
        self.output = output
        self.operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams' result."""
        return self.operation.forward([values[index] for index in self.reads])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:  # noqa: ARG002
        """The gradient in each value read."""
        return self.operation.transpose(gradient)


CpuInstruction = (
    GateInstruction | MaskedConvolutionInstruction | PooledInstruction | OperationInstruction
)


class CpuEngine:
    """Learns the masks of a linear network, starting from `logits`."""

    def __init__(
        self, net: LinearNetwork, logits: Logits, *, loss: Loss, learning_rate: float
    ) -> None:
        self._net = net
        self._loss = loss
        self._plan = plan_of(net)
        assert self._plan.rows_known
        self._narrowed = self._plan.narrowed
        self._start = {name: logits[name] for name in self._narrowed.channels}
        self._sites: dict[str, MaskedSite] = {}
        self._program: list[CpuInstruction] = []
        self._constants: dict[int, Value] = {}
        with torch.no_grad():
            self._output = net.score(net.frozen.output)
            self._build(logits, learning_rate)

    @property
    def logits(self) -> Logits:
        """The learned scalars as they stand."""
        whole = self._narrowed.whole
        return {n: whole(n, site.learned(), self._start.get(n)) for n, site in self._sites.items()}

    @torch.no_grad()
    def step(self) -> Terms:
        """One iteration of RMSProp; the terms before it."""
        positive, negative = self._forward()
        terms = Terms(self._output, positive, negative)
        passes = _passes(self._loss.seeds(terms))
        for streams, seed in passes:
            self._backward(streams, seed, descend=len(passes) == 1)
        if len(passes) > 1:
            for site in self._sites.values():
                site.descend()
        return terms

    def learn(self, iterations: int, on_iteration: OnIteration = None) -> Terms:
        """Many iterations; the terms before each."""
        return learn_by_steps(self.step, self._output, iterations, on_iteration)

    def readout(self) -> Readout:
        """The terms and linear maps at the masks as they stand."""
        logits = self.logits
        return read_out(self._net, self._output, lambda: logits, past_masks(logits))

    def is_in_range(self, past: Terms) -> bool:  # noqa: ARG002
        """The network's own precision holds what the network holds."""
        return True

    def _build(self, logits: Logits, learning_rate: float) -> None:
        """Turn the plan into a program: what x alone decides once, masks inside convolutions."""
        program, ends = self._plan.narrow_program, set(self._narrowed.tail.gradients)
        images = _images(program)
        readers = Counter(index for planned in program for index in planned.reads)
        readers.update(ends)
        values: dict[int, Value] = {
            0: channels_last(torch.cat([self._net.inputs, self._net.inputs]))
        }
        pools = _pools(program, readers, images)
        merged = {pool.step.output for pool in pools.values()}
        for planned in program:
            step, chosen = planned.step, planned.operation
            if step.output in pools:
                self._build_pooled(step, pools[step.output], values, logits, learning_rate)
            elif step.output in merged:
                continue
            elif chosen is None:
                is_image = step.output in images
                self._build_gate(planned, readers, logits, learning_rate, is_image=is_image)
            elif planned.is_constant:
                values[step.output] = chosen.forward([values[index] for index in chosen.reads])
            else:
                self._program.append(OperationInstruction(chosen, step.output))
        read = ends.union(*(instruction.reads for instruction in self._program))
        self._constants = {k: v for k, v in values.items() if k in read}
        self._finished = last_reads(self._program, ends)

    def _build_pooled(
        self,
        step: Step,
        pool: Planned,
        values: dict[int, Value],
        logits: Logits,
        learning_rate: float,
    ) -> None:
        assert isinstance(step.function, ElementwiseLine)
        assert isinstance(pool.step.function, Gather)
        assert isinstance(pool.operation, GatherOperation)
        assert step.site is not None
        start = logits[step.site.name]
        site = PooledMaskedSite(step.function, pool.step.function, start, learning_rate)
        self._sites[step.site.name] = site
        given = values.get(step.reads[0])
        self._program.append(PooledInstruction(step, pool.step, pool.operation, site, given))

    def _build_gate(
        self,
        planned: Planned,
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
        start = self._narrowed.start(step.site.name, logits[step.site.name])
        if is_image:
            site = MaskedSite(step.function, start, learning_rate)
        else:
            rows = len(self._net.inputs)
            site = LaidOutSite(step.function, start, learning_rate, layout=layout, rows=rows)
        self._sites[step.site.name] = site
        read = step.reads[0]
        before = next((k for k in self._program if k.output == read), None)
        convolution = before.operation if isinstance(before, OperationInstruction) else None
        alone = readers[read] == 1 and site.is_plain and is_image
        if isinstance(convolution, ConvolutionOperation) and alone:
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
        tail = self._narrowed.tail
        positive, negative = tail.scores({k: stacked(values[k]) for k in tail.gradients})
        return positive, negative

    def _backward(self, streams: list[int], seeds: Tensor, *, descend: bool) -> None:
        gradients: dict[int, Any] = {**self._narrowed.tail.seeded(seeds)}
        for instruction in reversed(self._program):
            gradient = gradients.pop(instruction.output, None)
            if gradient is None:
                continue
            found = instruction.backward(gradient, streams, descend=descend)
            for index, part in zip(instruction.reads, found, strict=True):
                if index not in self._constants:
                    gradients[index] = added(gradients.get(index), part)


def _images(program: Sequence[Planned]) -> set[int]:
    """Values in channels-last order, rows first: what operations for images read and put out."""
    found: set[int] = {0}
    for planned in program:
        step, chosen = planned.step, planned.operation
        if isinstance(chosen, ConvolutionOperation | ScaleOperation | GatherOperation):
            found.update(step.reads)
            found.add(step.output)
        elif chosen is None or isinstance(chosen, SumOperation | ConcatenationOperation):
            found.update([step.output] if found.intersection(step.reads) else [])
    return {
        planned.step.output
        for planned in program
        if planned.step.output in found
        and planned.layout == FIRST
        and len(planned.step.shape or ()) == 4
    }


def _pools(
    program: Sequence[Planned], readers: Counter[int], images: set[int]
) -> dict[int, Planned]:
    """Max-poolings that alone read a ReLU, by the ReLU's output."""
    gates = {
        p.step.output: p.step.function
        for p in program
        if p.operation is None and p.step.output in images
    }
    found: dict[int, Planned] = {}
    for planned in program:
        read = planned.step.reads[0]
        piece = gates.get(read)
        if isinstance(planned.operation, GatherOperation) and isinstance(piece, ElementwiseLine):
            is_relu = piece.slope.dtype == torch.bool and piece.offset is None
            if is_relu and readers[read] == 1:
                found[read] = planned
    return found


def _passes(seeds: Tensor) -> list[tuple[list[int], Tensor]]:
    """Backward passes as (stream of each row, seed of each row): one, unless a row needs both."""
    positive, negative = seeds
    first = torch.where(positive != 0, 0, 1)
    passes = [(first.tolist(), torch.where(first == 0, positive, negative))]
    both = (positive != 0) & (negative != 0)
    if bool(both.any()):
        passes.append(([1] * len(first), torch.where(both, negative, 0)))
    return passes
