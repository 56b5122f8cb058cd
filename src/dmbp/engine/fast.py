"""The fast engine for CPUs: folded, channels-last, without autograd.

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

from dmbp.engine.engine import Logits
from dmbp.engine.loss import Loss
from dmbp.engine.masked_site import MaskedSite
from dmbp.engine.operations import ConvolutionOperation, Operation
from dmbp.engine.plan import added, plan_of
from dmbp.engine.readout import read_out
from dmbp.engine.streams import Value, apart, in_order, stacked
from dmbp.engine.terms import Readout, Terms
from dmbp.linear import LinearNetwork
from dmbp.linear.freeze import Step
from dmbp.linear.gates import Piece


class GateInstruction:
    """An activation and its masks."""

    def __init__(self, step: Step, site: MaskedSite) -> None:
        self.reads = step.reads[:1]
        self.output = step.output
        self.site = site

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams past the masks."""
        return self.site.forward(in_order(stacked(values[self.reads[0]])))

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


class PlainInstruction:
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


Instruction = GateInstruction | MaskedConvolutionInstruction | PlainInstruction


class FastEngine:
    """Learns the masks of a linear network, starting from `logits`."""

    def __init__(
        self, net: LinearNetwork, logits: Logits, *, loss: Loss, learning_rate: float
    ) -> None:
        self._net = net
        self._loss = loss
        self._frozen = plan_of(net).frozen
        self._sites: dict[str, MaskedSite] = {}
        self._program: list[Instruction] = []
        self._constants: dict[int, Value] = {}
        with torch.no_grad():
            self._output = net.value()
            self._build(logits, learning_rate)

    @property
    def logits(self) -> Logits:
        """The learned scalars as they stand."""
        return {name: site.logits for name, site in self._sites.items()}

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

    def readout(self) -> Readout:
        """The terms and linear maps at the masks as they stand."""
        return read_out(self._net, self.logits, self._output)

    def _build(self, logits: Logits, learning_rate: float) -> None:
        """Turn the plan into a program: what x alone decides once, masks inside convolutions."""
        plan = plan_of(self._net)
        readers = Counter(index for planned in plan.steps for index in planned.reads)
        values: dict[int, Value] = {0: in_order(torch.cat([self._net.inputs, self._net.inputs]))}
        for planned in plan.steps:
            step, chosen = planned.step, planned.operation
            if chosen is None:
                self._build_gate(step, readers, logits, learning_rate)
            elif planned.is_constant:
                values[step.output] = chosen.forward([values[index] for index in chosen.reads])
            else:
                self._program.append(PlainInstruction(chosen, step.output))
        read = {index for instruction in self._program for index in instruction.reads}
        self._constants = {k: v for k, v in values.items() if k in read}
        self._finished = _last_reads(self._program, self._frozen.result)

    def _build_gate(
        self, step: Step, readers: Counter[int], logits: Logits, learning_rate: float
    ) -> None:
        assert isinstance(step.function, Piece)
        assert step.site is not None
        site = MaskedSite(step.function, logits[step.site.name], learning_rate)
        self._sites[step.site.name] = site
        read = step.reads[0]
        before = next((k for k in self._program if k.output == read), None)
        convolution = before.operation if isinstance(before, PlainInstruction) else None
        alone = readers[read] == 1 and site.is_plain
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
        both = apart(values[self._frozen.result])
        return self._net.score(both.positive), self._net.score(both.negative)

    def _backward(self, streams: list[int], seeds: Tensor, *, descend: bool) -> None:
        gradients: dict[int, Any] = {self._frozen.result: seeds[:, None] * self._net.weights}
        for instruction in reversed(self._program):
            gradient = gradients.pop(instruction.output, None)
            if gradient is None:
                continue
            found = instruction.backward(gradient, streams, descend=descend)
            for index, part in zip(instruction.reads, found, strict=True):
                if index not in self._constants:
                    gradients[index] = added(gradients.get(index), part)


def _passes(seeds: Tensor) -> list[tuple[list[int], Tensor]]:
    """Backward passes as (stream of each row, seed of each row): one, unless a row needs both."""
    positive, negative = seeds
    first = torch.where(positive != 0, 0, 1)
    passes = [(first.tolist(), torch.where(first == 0, positive, negative))]
    both = (positive != 0) & (negative != 0)
    if bool(both.any()):
        passes.append(([1] * len(first), torch.where(both, negative, 0)))
    return passes


def _last_reads(program: Sequence[Instruction], result: int) -> list[list[int]]:
    """After each instruction, the values that no later one reads."""
    needed = {result}
    finished: list[list[int]] = []
    for instruction in reversed(program):
        reads = dict.fromkeys(instruction.reads)
        finished.append([index for index in reads if index not in needed])
        needed.update(reads)
    return finished[::-1]
