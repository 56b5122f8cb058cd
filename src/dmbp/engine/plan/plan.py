"""A linear network's steps as operations with transposes: made once, passed both ways many times.

Going back needs no activations, since the network is affine: the gradients of both streams at every
site cost one transposed pass and no memory but their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dmbp.engine.plan.operations import GeneralOperation, Operation, operation
from dmbp.engine.plan.rewrites import fold_batch_norm, prune_linear, reuse_concat
from dmbp.engine.plan.rows import layout_of
from dmbp.engine.plan.streams import (
    FIRST,
    Example,
    RowLayout,
    StreamPair,
    Value,
    channels_last,
    split_streams,
    stacked,
)
from dmbp.engine.plan.tail import Narrowed, prune_channels, read_by, tail_of, tail_steps
from dmbp.linear import LinearNetwork
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import FrozenGraph, Step

GradientAtGate = Callable[[Step, Tensor], Tensor]
"""From both streams' gradients in what a gate puts out, stacked, to those in what it reads."""

GradientAtStep = Callable[[Step, Value], None]
"""Is shown both streams' gradients in what another step puts out."""


@dataclass(frozen=True)
class Planned:
    """A step and its operation (None at a site).

    `is_constant`: x alone decides its result; `layout`: where the rows of that are, if it is known.
    """

    step: Step
    operation: Operation | None
    is_constant: bool
    layout: RowLayout | None

    @property
    def reads(self) -> Sequence[int]:
        """The values it is a function of, each once."""
        return self.step.reads[:1] if self.operation is None else self.operation.reads


def walk(steps: Sequence[Step], inputs: Tensor) -> Iterator[tuple[Planned, list[Example]]]:
    """Choose each step's operation by what it reads, of which only the form is known."""
    nothing = inputs.new_zeros(())
    start = Example(nothing.expand(inputs.shape), stacks=True, layout=FIRST)
    values: dict[int, Example] = {0: start}
    constant = {0}
    for step in steps:
        examples = [values[index] for index in step.reads]
        chosen = None if step.site is not None else operation(step, examples)
        if step.shape is not None:
            result: Any = nothing.expand(step.shape)
        else:
            result = step.apply({index: values[index].value for index in step.reads})
        is_constant = chosen is not None and constant.issuperset(step.reads)
        if is_constant:
            constant.add(step.output)
        layout = layout_of(step, examples, len(inputs))
        stacks = (layout is None or layout.stacks) if chosen is None else chosen.stacks
        values[step.output] = Example(result, stacks, layout)
        yield Planned(step, chosen, is_constant, layout), examples


class ExecutionPlan:
    """The operations of every step of a network, and both streams' way back through them.

    `program` are the steps that an engine runs at every iteration, from what x alone decides
    (`is_constant`) to what the `tail` reads. Only where `rows_known`, at every site and in what the
    tail reads, can masks be learned row by row; where `rows_first`, they are dimension 0 of all of
    these.
    """

    def __init__(self, net: LinearNetwork) -> None:
        self.frozen = reuse_concat(fold_batch_norm(net.frozen))
        if net.inputs.device.type == "cpu":  # looking for them waits for a GPU
            self.frozen = prune_linear(self.frozen)
        else:
            self.frozen = _in_order(self.frozen)
        self._weights = net.weights
        shapes = {0: tuple(net.inputs.shape)} | {s.output: s.shape for s in self.frozen.steps}
        last = tail_steps(self.frozen)
        ends = read_by(last, self.frozen)
        if any(shapes[index] is None for index in ends):
            last, ends = [], [self.frozen.result]
        in_tail = {step.output for step in last}
        with torch.no_grad():
            self.steps = [planned for planned, _ in walk(self.frozen.steps, net.inputs)]
        rest = [planned for planned in self.steps if planned.step.output not in in_tail]
        layouts = {planned.step.output: planned.layout for planned in self.steps}
        places = {p.layout for p in rest if p.step.site is not None or p.step.output in ends}
        self.rows_first = places <= {FIRST}
        all_known = None not in places and layouts[self.frozen.result] == FIRST
        self.rows_known = self.rows_first or all_known
        tail = tail_of(net, last, {index: shapes[index] or () for index in ends})
        elsewhere = {k: layout for k in ends if (layout := layouts.get(k, FIRST)) is not None}
        self.tail = replace(tail, layouts=elsewhere)
        self.program = rest
        self._inputs = net.inputs

    @cached_property
    def narrowed(self) -> Narrowed:
        """What is left of the program where channels that do not count are left out."""
        constant = {planned.step.output for planned in self.program if planned.is_constant}
        return prune_channels([planned.step for planned in self.program], self.tail, constant)

    @cached_property
    def narrow_program(self) -> Sequence[Planned]:
        """The program without these."""
        changed = self.narrowed.steps
        steps = [changed.get(planned.step.output, planned.step) for planned in self.program]
        with torch.no_grad():
            anew = [p for p, _ in walk(steps, self._inputs)] if changed else self.program
        both = zip(anew, self.program, strict=True)
        return [new if new.step.output in changed else old for new, old in both]

    def pull_back(self, at_gate: GradientAtGate, at_step: GradientAtStep | None = None) -> Tensor:
        """The gradient of both streams' scores in the inputs, by way of every site."""
        return stacked(self._back(self.steps, at_gate, at_step)[0])

    def visit_gates(self, at_gate: GradientAtGate) -> None:
        """The same way back, as far as the first site."""
        self._back([step for step in self.steps if not step.is_constant], at_gate, None)

    def _back(
        self, steps: Sequence[Planned], at_gate: GradientAtGate, at_step: GradientAtStep | None
    ) -> dict[int, Value]:
        """The gradients of what some steps read and none of them puts out."""
        gradients: dict[int, Value] = {
            self.frozen.result: torch.cat([self._weights, self._weights])
        }
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
                gradients[index] = added(gradients.get(index), part)
        return gradients


def _in_order(frozen: FrozenGraph) -> FrozenGraph:
    """The same with the slopes of gates in the order of memory that engines keep."""
    steps = [
        replace(step, function=replace(step.function, slope=channels_last(step.function.slope)))
        if step.site is not None and isinstance(step.function, ElementwiseLine)
        else step
        for step in frozen.steps
    ]
    return replace(frozen, steps=steps)


_PLANS: WeakKeyDictionary[LinearNetwork, ExecutionPlan] = WeakKeyDictionary()


def plan_of(net: LinearNetwork) -> ExecutionPlan:
    """The plan of a network, kept as long as the network."""
    if net not in _PLANS:
        _PLANS[net] = ExecutionPlan(net)
    return _PLANS[net]


def transpose_both(chosen: Operation, gradient: Value) -> Sequence[Any]:
    """The transpose of an operation for the gradients of both streams."""
    if not isinstance(chosen, GeneralOperation):
        return chosen.transpose(stacked(gradient))
    halves = split_streams(gradient)
    pairs = zip(chosen.transpose(halves.positive), chosen.transpose(halves.negative), strict=True)
    return [None if one is None else StreamPair(one, other) for one, other in pairs]


def added(one: Any, other: Any) -> Any:
    """The sum of two gradients, in whatever form they come."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, StreamPair) or isinstance(other, StreamPair):
        left, right = split_streams(one), split_streams(other)
        return StreamPair(
            added(left.positive, right.positive), added(left.negative, right.negative)
        )
    if isinstance(one, Tensor):
        return one + other
    return [added(a, b) for a, b in zip(one, other, strict=True)]


class Reading(Protocol):
    """A piece of a program: it reads some values and puts one out."""

    @property
    def reads(self) -> Sequence[int]:
        """The values read."""
        ...


def last_reads(program: Sequence[Reading], needed: set[int]) -> list[list[int]]:
    """After each piece of a program, the values that no later one reads."""
    needed = set(needed)
    finished: list[list[int]] = []
    for instruction in reversed(program):
        reads = dict.fromkeys(instruction.reads)
        finished.append([index for index in reads if index not in needed])
        needed.update(reads)
    return finished[::-1]
