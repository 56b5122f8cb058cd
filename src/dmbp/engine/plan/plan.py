"""The execution plan of a linear network: its steps as operations with transposes.

A plan is made once for a network and then run many times, forward and back. The backward pass needs
no activations, because the network is affine: the gradients of both streams at every site cost one
transposed pass, and no memory except their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from dmbp.engine.plan.kernels import Kernels
from dmbp.engine.plan.operations import GeneralOperation, Operation, choose_operation
from dmbp.engine.plan.rewrites import fold_batch_norm, prune_linear, reuse_concat
from dmbp.engine.plan.rows import result_layout
from dmbp.engine.plan.streams import (
    ROWS_FIRST,
    Example,
    RowLayout,
    StreamPair,
    Value,
    channels_last,
    split_streams,
    stacked,
)
from dmbp.engine.plan.tail import PrunedChannels, make_tail, prune_channels, tail_inputs, tail_steps
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import FrozenGraph, Step

GradientAtGate = Callable[[Step, Tensor], Tensor]
"""Maps both streams' stacked gradients in a gate's output to those in its input."""

GradientAtStep = Callable[[Step, Value], None]
"""Receives both streams' gradients in the output of a step that is not a gate."""


@dataclass(frozen=True)
class PlannedStep:
    """A step with the operation that runs it.

    Attributes:
        step: The step of the frozen graph.
        operation: What runs it; None at a site.
        is_constant: Whether its result depends on x alone, not on any mask.
        layout: Where the rows of its result are, None if unknown.
    """

    step: Step
    operation: Operation | None
    is_constant: bool
    layout: RowLayout | None

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values it is a function of, each once."""
        return self.step.reads[:1] if self.operation is None else self.operation.reads


def plan_steps(
    steps: Sequence[Step], inputs: Tensor, kernels: Kernels
) -> Iterator[tuple[PlannedStep, list[Example]]]:
    """Choose each step's operation, and yield it with the form of what the step reads.

    No activation is computed.
    """
    scalar = inputs.new_zeros(())
    start = Example(scalar.expand(inputs.shape), stacks=True, layout=ROWS_FIRST)
    values: dict[int, Example] = {0: start}
    constant = {0}
    for step in steps:
        examples = [values[index] for index in step.reads]
        chosen = None if step.site is not None else choose_operation(step, examples, kernels)
        if step.shape is not None:
            result: Any = scalar.expand(step.shape)
        else:
            result = step.apply({index: values[index].value for index in step.reads})
        is_constant = chosen is not None and constant.issuperset(step.reads)
        if is_constant:
            constant.add(step.output)
        layout = result_layout(step, examples, len(inputs))
        stacks = (layout is None or layout.stacks) if chosen is None else chosen.stacks
        values[step.output] = Example(result, stacks, layout)
        yield PlannedStep(step, chosen, is_constant, layout), examples


class ExecutionPlan:
    """The operations of all steps of a network, and the backward pass through them.

    Attributes:
        net: The linear network.
        kernels: The functions that the back end may replace by faster ones.
        frozen: The rewritten graph.
        steps: All steps.
        program: The steps that an engine runs: all but the tail. Steps with `is_constant` run once,
            the others at every iteration.
        tail: The steps after the last sites, as one product.
        rows_known: Whether it is known which elements belong to which row, at every site and in the
            values that the tail reads. Only then can an engine learn the masks row by row.
        rows_first: Whether rows are dimension 0 in all of these values.
    """

    def __init__(self, net: LinearNetwork, kernels: Kernels) -> None:
        self.net = net
        self.kernels = kernels
        self.frozen = reuse_concat(fold_batch_norm(net.frozen))
        if net.inputs.device.type == "cpu":  # on a GPU the search would have to wait for results
            self.frozen = prune_linear(self.frozen)
        else:
            self.frozen = _with_channels_last_slopes(self.frozen)
        shapes = {0: tuple(net.inputs.shape)} | {s.output: s.shape for s in self.frozen.steps}
        last = tail_steps(self.frozen)
        ends = tail_inputs(last, self.frozen)
        if any(shapes[index] is None for index in ends):
            last, ends = [], [self.frozen.result]
        in_tail = {step.output for step in last}
        with torch.no_grad():
            planned_steps = plan_steps(self.frozen.steps, net.inputs, kernels)
            self.steps = [planned for planned, _ in planned_steps]
        rest = [planned for planned in self.steps if planned.step.output not in in_tail]
        layouts = {planned.step.output: planned.layout for planned in self.steps}
        places = {p.layout for p in rest if p.step.site is not None or p.step.output in ends}
        self.rows_first = places <= {ROWS_FIRST}
        all_known = None not in places and layouts[self.frozen.result] == ROWS_FIRST
        self.rows_known = self.rows_first or all_known
        tail = make_tail(net, last, {index: shapes[index] or () for index in ends})
        elsewhere = {k: layout for k in ends if (layout := layouts.get(k, ROWS_FIRST)) is not None}
        self.tail = replace(tail, layouts=elsewhere)
        self.program = rest

    @cached_property
    def pruned(self) -> PrunedChannels:
        """The last layers without the channels that the score does not depend on."""
        constant = {planned.step.output for planned in self.program if planned.is_constant}
        return prune_channels([planned.step for planned in self.program], self.tail, constant)

    @cached_property
    def pruned_program(self) -> Sequence[PlannedStep]:
        """The program without the channels that the score does not depend on."""
        changed = self.pruned.steps
        steps = [changed.get(planned.step.output, planned.step) for planned in self.program]
        if not changed:
            return self.program
        with torch.no_grad():
            planned_again = [p for p, _ in plan_steps(steps, self.net.inputs, self.kernels)]
        both = zip(planned_again, self.program, strict=True)
        return [new if new.step.output in changed else old for new, old in both]

    def pull_back(self, at_gate: GradientAtGate, at_step: GradientAtStep | None = None) -> Tensor:
        """Return the gradients of both streams' scores in the inputs, passing every site."""
        return stacked(self._back(self.steps, at_gate, at_step)[0])

    def visit_gates(self, at_gate: GradientAtGate) -> None:
        """Pass gradients back like `pull_back`, but only as far as the first site."""
        self._back([step for step in self.steps if not step.is_constant], at_gate, None)

    def _back(
        self,
        steps: Sequence[PlannedStep],
        at_gate: GradientAtGate,
        at_step: GradientAtStep | None,
    ) -> dict[int, Value]:
        """Return the gradients in the values that the steps read but do not compute."""
        weights = self.net.weights
        gradients: dict[int, Value] = {self.frozen.result: torch.cat([weights, weights])}
        for planned in reversed(steps):
            gradient = gradients.pop(planned.step.output, None)
            if gradient is None:
                continue
            if planned.operation is None:
                found: Sequence[Any] = [at_gate(planned.step, stacked(gradient))]
            else:
                if at_step is not None:
                    at_step(planned.step, gradient)
                found = transpose_both(planned.operation, gradient)
            for index, part in zip(planned.reads, found, strict=True):
                gradients[index] = add_gradients(gradients.get(index), part)
        return gradients


def _with_channels_last_slopes(frozen: FrozenGraph) -> FrozenGraph:
    """Put the slopes of gates into the engines' memory order."""
    steps = [
        replace(step, function=replace(step.function, slope=channels_last(step.function.slope)))
        if step.site is not None and isinstance(step.function, ElementwiseLine)
        else step
        for step in frozen.steps
    ]
    return replace(frozen, steps=steps)


def transpose_both(chosen: Operation, gradient: Value) -> Sequence[Any]:
    """Apply an operation's transpose to the gradients of both streams."""
    if not isinstance(chosen, GeneralOperation):
        return chosen.transpose(stacked(gradient))
    halves = split_streams(gradient)
    pairs = zip(chosen.transpose(halves.positive), chosen.transpose(halves.negative), strict=True)
    return [None if one is None else StreamPair(one, other) for one, other in pairs]


def add_gradients(one: Any, other: Any) -> Any:
    """Add two gradients in any form: None, tensors, stream pairs or nested lists."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, StreamPair) or isinstance(other, StreamPair):
        left, right = split_streams(one), split_streams(other)
        return StreamPair(
            add_gradients(left.positive, right.positive),
            add_gradients(left.negative, right.negative),
        )
    if isinstance(one, Tensor):
        return one + other
    return [add_gradients(a, b) for a, b in zip(one, other, strict=True)]


class Reads(Protocol):
    """An instruction of a program, seen by which values it reads."""

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values read."""
        ...


def last_reads(program: Sequence[Reads], needed: set[int]) -> list[list[int]]:
    """List for each instruction the values that no later one reads, which may then be freed.

    Values in `needed` are never freed.
    """
    needed = set(needed)
    finished: list[list[int]] = []
    for instruction in reversed(program):
        reads = dict.fromkeys(instruction.reads)
        finished.append([index for index in reads if index not in needed])
        needed.update(reads)
    return finished[::-1]
