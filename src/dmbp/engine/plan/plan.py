"""The execution plan of a linear network: its steps as operations with transposes.

A plan is made once for a network and then run many times, forward and backward. The backward pass
needs no activations, because the network is affine: the gradients of both streams at every site
cost one transposed pass, and no memory besides the gradients themselves.
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
from dmbp.linear.steps import FrozenGraph, LinearStep

GradientAtGate = Callable[[LinearStep, Tensor], Tensor]
"""Maps both streams' stacked gradients with respect to a gate's output to those of its input."""

GradientAtStep = Callable[[LinearStep, Value], None]
"""Receives both streams' gradients with respect to the output of a step that is not a gate."""


@dataclass(frozen=True)
class PlannedStep:
    """A step with the operation that runs it.

    Attributes:
        step: The step of the frozen graph.
        operation: The operation that runs it, None at a site.
        is_constant: Whether its result depends on x alone, not on any mask.
        layout: The row layout of its result, None if unknown.
    """

    step: LinearStep
    operation: Operation | None
    is_constant: bool
    layout: RowLayout | None

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values that it depends on, each once."""
        return self.step.reads[:1] if self.operation is None else self.operation.reads


def plan_steps(
    steps: Sequence[LinearStep], inputs: Tensor, kernels: Kernels
) -> Iterator[tuple[PlannedStep, list[Example]]]:
    """Choose each step's operation, and yield it with the form of the values that the step reads.

    Steps whose result has a known shape are not run.
    """
    scalar = inputs.new_zeros(())
    image = Example(scalar.expand(inputs.shape), stacks=True, layout=ROWS_FIRST)
    values: dict[int, Example] = {0: image}
    constant = {0}
    for step in steps:
        examples = [values[index] for index in step.reads]
        operation = None if step.site is not None else choose_operation(step, examples, kernels)
        if step.shape is not None:
            result: Any = scalar.expand(step.shape)
        else:
            result = step.apply({index: values[index].value for index in step.reads})
        is_constant = operation is not None and constant.issuperset(step.reads)
        if is_constant:
            constant.add(step.output)
        layout = result_layout(step, examples, len(inputs))
        stacks = (layout is None or layout.stacks) if operation is None else operation.stacks
        values[step.output] = Example(result, stacks, layout)
        yield PlannedStep(step, operation, is_constant, layout), examples


class ExecutionPlan:
    """The operations of all steps of a network, and the backward pass through them.

    Attributes:
        net: The linear network.
        kernels: The functions that the back end may replace by faster ones.
        frozen: The rewritten graph.
        steps: All steps.
        program: The steps that an engine runs: all but the tail. Steps with `is_constant` run once,
            the others at every iteration.
        tail: The steps after the last sites, as one affine function.
        rows_known: Whether it is known which elements belong to which row, at every site and in the
            values that the tail reads. Only then can an engine learn the masks row by row.
        rows_first: Whether dimension 0 holds the rows, and nothing else, in all of these values.
    """

    def __init__(self, net: LinearNetwork, kernels: Kernels) -> None:
        self.net = net
        self.kernels = kernels
        self.frozen = reuse_concat(fold_batch_norm(net.frozen))
        if net.inputs.device.type == "cpu":  # on a GPU the search would wait for the device
            self.frozen = prune_linear(self.frozen)
        else:
            self.frozen = _with_channels_last_slopes(self.frozen)
        shapes = {0: tuple(net.inputs.shape)} | {s.output: s.shape for s in self.frozen.steps}
        last_steps = tail_steps(self.frozen)
        ends = tail_inputs(last_steps, self.frozen)
        if any(shapes[index] is None for index in ends):
            last_steps, ends = [], [self.frozen.result]
        in_tail = {step.output for step in last_steps}
        with torch.no_grad():
            planned_steps = plan_steps(self.frozen.steps, net.inputs, kernels)
            self.steps = [planned for planned, _ in planned_steps]
        rest = [planned for planned in self.steps if planned.step.output not in in_tail]
        layouts = {planned.step.output: planned.layout for planned in self.steps}
        at_sites_and_ends = {
            p.layout for p in rest if p.step.site is not None or p.step.output in ends
        }
        self.rows_first = at_sites_and_ends <= {ROWS_FIRST}
        all_known = None not in at_sites_and_ends and layouts[self.frozen.result] == ROWS_FIRST
        self.rows_known = self.rows_first or all_known
        tail = make_tail(net, last_steps, {index: shapes[index] or () for index in ends})
        tail_layouts = {
            k: layout for k in ends if (layout := layouts.get(k, ROWS_FIRST)) is not None
        }
        self.tail = replace(tail, layouts=tail_layouts)
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
        """Return the stacked gradients of both streams' scores with respect to the inputs."""
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
        """Return the gradients with respect to values that the steps read but do not compute."""
        weights = self.net.weights
        gradients: dict[int, Value] = {self.frozen.result: torch.cat([weights, weights])}
        for planned in reversed(steps):
            gradient = gradients.pop(planned.step.output, None)
            if gradient is None:
                continue
            if planned.operation is None:
                parts: Sequence[Any] = [at_gate(planned.step, stacked(gradient))]
            else:
                if at_step is not None:
                    at_step(planned.step, gradient)
                parts = transpose_both(planned.operation, gradient)
            for index, part in zip(planned.reads, parts, strict=True):
                gradients[index] = add_gradients(gradients.get(index), part)
        return gradients


def _with_channels_last_slopes(frozen: FrozenGraph) -> FrozenGraph:
    """Return the graph with the gates' slopes in the engines' memory order."""
    steps = [
        replace(step, function=replace(step.function, slope=channels_last(step.function.slope)))
        if step.site is not None and isinstance(step.function, ElementwiseLine)
        else step
        for step in frozen.steps
    ]
    return replace(frozen, steps=steps)


def transpose_both(operation: Operation, gradient: Value) -> Sequence[Any]:
    """Apply an operation's transpose to the gradients of both streams."""
    if not isinstance(operation, GeneralOperation):
        return operation.transpose(stacked(gradient))
    halves = split_streams(gradient)
    positive, negative = operation.transpose(halves.positive), operation.transpose(halves.negative)
    pairs = zip(positive, negative, strict=True)
    return [None if first is None else StreamPair(first, second) for first, second in pairs]


def add_gradients(left: Any, right: Any) -> Any:
    """Add two gradients, each a tensor, a stream pair, a nested list, or None for zero."""
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, StreamPair) or isinstance(right, StreamPair):
        left, right = split_streams(left), split_streams(right)
        return StreamPair(
            add_gradients(left.positive, right.positive),
            add_gradients(left.negative, right.negative),
        )
    if isinstance(left, Tensor):
        return left + right
    return [add_gradients(a, b) for a, b in zip(left, right, strict=True)]


class Reads(Protocol):
    """An instruction of a program that lists the values it reads."""

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values read."""
        ...


def last_reads(program: Sequence[Reads], needed: set[int]) -> list[list[int]]:
    """Return, for each instruction, the values it reads that no later one reads.

    They may be freed after it. Values in `needed` are never freed.
    """
    needed = set(needed)
    finished: list[list[int]] = []
    for instruction in reversed(program):
        reads = dict.fromkeys(instruction.reads)
        finished.append([index for index in reads if index not in needed])
        needed.update(reads)
    return finished[::-1]
