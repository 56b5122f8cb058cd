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

from dmbp.engine.engine import Logits, Loss
from dmbp.engine.folding import folded
from dmbp.engine.masked_site import MaskedSite
from dmbp.engine.operations import ConvolutionOperation, Operation, operation
from dmbp.engine.reference import read_out
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
        self._operation = operation

    def forward(self, values: dict[int, Value]) -> Value:
        """Both streams' result."""
        return self._operation.forward([values[index] for index in self.reads])

    def backward(self, gradient: Any, streams: list[int], *, descend: bool) -> Sequence[Any]:  # noqa: ARG002
        """The gradient in each value read."""
        return self._operation.transpose(gradient)


Instruction = GateInstruction | MaskedConvolutionInstruction | PlainInstruction


class FastEngine:
    """Learns the masks of a linear network, starting from `logits`."""

    def __init__(
        self, net: LinearNetwork, logits: Logits, *, loss: Loss, learning_rate: float
    ) -> None:
        self._net = net
        self._loss = loss
        self._frozen = folded(net.frozen)
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
        terms, seeds = self._seeds(positive, negative)
        passes = _passes(seeds)
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
        """Run the network once, choosing the operation of every step by what it is given."""
        steps = self._frozen.steps
        readers = Counter(index for step in steps for index in step.reads)
        inputs = in_order(torch.cat([self._net.inputs, self._net.inputs]))
        values: dict[int, Value] = {0: inputs}
        constant = {0}
        waiting: dict[int, ConvolutionOperation] = {}
        for step in steps:
            if step.site is not None and step.site.name in logits:
                self._build_gate(step, values, waiting, logits[step.site.name], learning_rate)
                continue
            chosen = operation(step, [values[index] for index in step.reads])
            values[step.output] = chosen.forward([values[index] for index in chosen.reads])
            if all(index in constant for index in step.reads):
                constant.add(step.output)
                self._constants[step.output] = values[step.output]
            elif isinstance(chosen, ConvolutionOperation) and readers[step.output] == 1:
                waiting[step.output] = chosen
                self._program.append(PlainInstruction(chosen, step.output))
            else:
                self._program.append(PlainInstruction(chosen, step.output))
        self._constants[0] = inputs
        read = {index for instruction in self._program for index in instruction.reads}
        self._constants = {k: v for k, v in self._constants.items() if k in read}
        self._finished = _last_reads(self._program, self._frozen.result)

    def _build_gate(
        self,
        step: Step,
        values: dict[int, Value],
        waiting: dict[int, ConvolutionOperation],
        logits: Tensor,
        learning_rate: float,
    ) -> None:
        assert isinstance(step.function, Piece)
        assert step.site is not None
        site = MaskedSite(step.function, logits, learning_rate)
        self._sites[step.site.name] = site
        convolution = waiting.get(step.reads[0])
        last = self._program[-1] if self._program else None
        if convolution is not None and last is not None and site.is_plain:
            fused = MaskedConvolutionInstruction(convolution, step, site)
            self._program = [k for k in self._program if k.output != step.reads[0]]
            self._program.append(fused)
        else:
            self._program.append(GateInstruction(step, site))
        values[step.output] = site.forward(in_order(stacked(values[step.reads[0]])))

    def _forward(self) -> tuple[Tensor, Tensor]:
        values = dict(self._constants)
        for instruction, finished in zip(self._program, self._finished, strict=True):
            values[instruction.output] = instruction.forward(values)
            for index in finished:
                del values[index]
        both = apart(values[self._frozen.result])
        return self._net.score(both.positive), self._net.score(both.negative)

    @torch.enable_grad()
    def _seeds(self, positive: Tensor, negative: Tensor) -> tuple[Terms, Tensor]:
        """The terms, and what the loss asks of each stream, (2, rows)."""
        positive, negative = (term.detach().requires_grad_() for term in (positive, negative))
        loss = self._loss(Terms(self._output, positive, negative)).sum()
        seeds = torch.autograd.grad(loss, [positive, negative], materialize_grads=True)
        return Terms(self._output, positive.detach(), negative.detach()), torch.stack(seeds)

    def _backward(self, streams: list[int], seeds: Tensor, *, descend: bool) -> None:
        gradients: dict[int, Any] = {self._frozen.result: seeds[:, None] * self._net.weights}
        for instruction in reversed(self._program):
            gradient = gradients.pop(instruction.output, None)
            if gradient is None:
                continue
            found = instruction.backward(gradient, streams, descend=descend)
            for index, part in zip(instruction.reads, found, strict=True):
                if index not in self._constants:
                    gradients[index] = _added(gradients.get(index), part)


def _passes(seeds: Tensor) -> list[tuple[list[int], Tensor]]:
    """Backward passes as (stream of each row, seed of each row): one, unless a row needs both."""
    positive, negative = seeds
    first = torch.where(positive != 0, 0, 1)
    passes = [(first.tolist(), torch.where(first == 0, positive, negative))]
    both = (positive != 0) & (negative != 0)
    if bool(both.any()):
        passes.append(([1] * len(first), torch.where(both, negative, 0)))
    return passes


def _added(one: Any, other: Any) -> Any:
    """The sum of two gradients, in whatever form they come."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Tensor):
        return one + other
    return [_added(a, b) for a, b in zip(one, other, strict=True)]


def _last_reads(program: Sequence[Instruction], result: int) -> list[list[int]]:
    """After each instruction, the values that no later one reads."""
    needed = {result}
    finished: list[list[int]] = []
    for instruction in reversed(program):
        reads = dict.fromkeys(instruction.reads)
        finished.append([index for index in reads if index not in needed])
        needed.update(reads)
    return finished[::-1]
