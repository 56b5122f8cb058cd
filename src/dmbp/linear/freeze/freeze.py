"""Freezes a captured graph at x: runs it once and replaces every operation by a linear function.

Whatever does not depend on the input becomes a constant. What remains is a short list of steps,
each a linear function of earlier ones. Operations run in their frozen form, so the output of this
single pass is the linear network's own output.

`check_exactness` compares that output with the model's:

    error = max over images of  max_c |linear_c − model_c| / max_c |model_c|

If the error is too large, the captured graph is audited, operation by operation, to report where
it arises.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.errors import InexactCapture
from dmbp.linear.capture.composite import rule_for
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.lines import ElementwiseLine, LineRule, tangent
from dmbp.linear.rules.base import ArgumentKey, Function, OperationCall, Role, Rule, lowest_role
from dmbp.linear.rules.refusals import RANDOM, cause_of
from dmbp.linear.rules.table import (
    NO_RULE,
    constant_output_error,
    module_path,
    operation_name,
    unsupported_error,
    unsupported_errors,
)
from dmbp.linear.steps import FrozenGraph, LinearStep, Site, Slot, prune_steps
from dmbp.precision import TOLERANCE, relative_error

IDENTITY = "identity"
"""The operation of a step that no node computes: the site after a product."""

Audit = Callable[[LinearStep, Sequence[Any], Any], None]
"""Called with each step, the arguments of its operation and the operation's result."""


@torch.no_grad()
def freeze(
    captured: CapturedGraph,
    inputs: Tensor,
    *,
    line: LineRule = tangent,
    overrides: Mapping[str, Rule] | None = None,
    audit: Audit | None = None,
) -> FrozenGraph:
    """Freeze every operation at `inputs`, and replace smooth activations by a `line`.

    `overrides` are rules that replace those of the table, by operation. With an `audit` the
    original operations run instead of their frozen forms, and the output is that of the captured
    graph.
    """
    values: dict[Node, Any] = {n: t.detach() for n, t in captured.constants.items()}
    values[captured.input] = inputs
    slots: dict[Node, Slot] = {captured.input: Slot(0)}
    roles: dict[Node, Role] = {captured.input: Role.PLAIN}
    steps: list[LinearStep] = []
    names: Counter[str] = Counter()
    refused: list[tuple[Node, str]] = []
    last_reader = {parent: node for node in captured.graph.nodes for parent in node.all_input_nodes}
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        call = _call(node, values, slots, roles, line)
        rule = (overrides or {}).get(operation_name(node.target)) or rule_for(node.target)
        reads_input = rule is not None and any(parent in roles for parent in node.all_input_nodes)
        frozen = None
        if rule is not None and reads_input:
            roles[node] = rule.role(call)
            reason = rule.refusal(call) if call.active else None
            if reason is not None:
                refused.append((node, reason))
                call = _with_copied_tensors(call)
            frozen = _linear_function(rule, call, is_refused=reason is not None)
        function = call.function if audit is not None or frozen is None else frozen
        values[node] = function(*call.arguments, **call.keywords)
        if rule is not None and frozen is not None and not _is_integer(values[node]):
            site = _site(node, values[node], names) if rule.is_site(call) else None
            constant = rule.frozen_arguments(call)
            step = _step(node, rule, frozen, constant=constant, slots=slots, values=values)
            step = replace(step, output=len(steps) + 1)
            if audit is not None:
                audit(step, call.arguments, values[node])
            added = _with_site(step, site, values[node])
            slots[node] = Slot(added[-1].output)
            steps.extend(added)
        for parent in node.all_input_nodes:
            if last_reader[parent] is node:
                del values[parent]
    if refused:
        raise unsupported_errors(refused)
    if captured.output not in slots:
        raise constant_output_error(captured.output)
    result = slots[captured.output].index
    return FrozenGraph(prune_steps(steps, result), result, values[captured.output])


def _call(
    node: Node,
    values: Mapping[Node, Any],
    slots: Mapping[Node, Slot],
    roles: Mapping[Node, Role],
    line: LineRule,
) -> OperationCall:
    """Describe a node's call with its arguments at x."""

    def concrete(argument: Any) -> Any:
        return torch.fx.map_arg(argument, values.__getitem__)

    assert callable(node.target)
    arguments: dict[ArgumentKey, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    own_roles = {key: _roles_in(argument, roles) for key, argument in arguments.items()}
    return OperationCall(
        node.target,
        concrete(node.args),
        concrete(node.kwargs),
        active=frozenset(key for key, argument in arguments.items() if _reads(argument, slots)),
        roles={key: lowest_role(own) for key, own in own_roles.items() if own},
        line=line,
    )


def _linear_function(rule: Rule, call: OperationCall, *, is_refused: bool) -> Function | None:
    """Return the node's linear function, or None if it is a constant of the linear network.

    A refused operation runs unchanged, so that freezing continues and all refused operations are
    reported together.
    """
    if not call.active:
        return None
    return call.function if is_refused else rule.freeze(call)


def _with_copied_tensors(call: OperationCall) -> OperationCall:
    """Copy the call's tensors: batch norm in training mode writes into the model's buffers."""

    def copied(argument: Any) -> Any:
        return argument.clone() if isinstance(argument, Tensor) else argument

    return replace(call, arguments=[copied(argument) for argument in call.arguments])


def _step(
    node: Node,
    rule: Rule,
    function: Function,
    *,
    constant: frozenset[ArgumentKey],
    slots: Mapping[Node, Slot],
    values: Mapping[Node, Any],
) -> LinearStep:
    """Return the step that computes a node; `constant` arguments keep their value at x."""

    def template(key: ArgumentKey, argument: Any) -> Any:
        active = {} if key in constant else slots

        def slot_or_value(parent: Node) -> Any:
            return active.get(parent, values[parent])

        return torch.fx.map_arg(argument, slot_or_value)

    return LinearStep(
        name=node.name,
        operation=operation_name(node.target),
        kind=rule.kind,
        module=module_path(node),
        function=function,
        arguments=[template(position, argument) for position, argument in enumerate(node.args)],
        keywords={name: template(name, argument) for name, argument in node.kwargs.items()},
        output=0,
        shape=tuple(values[node].shape) if isinstance(values[node], Tensor) else None,
        site=None,
    )


def _with_site(step: LinearStep, site: Site | None, value: Any) -> list[LinearStep]:
    """Return the step with its site, which is on an identity after it unless it is a line."""
    if site is None or isinstance(step.function, ElementwiseLine):
        return [replace(step, site=site)]
    identity = LinearStep(
        name=f"{step.name}_site",
        operation=IDENTITY,
        kind="gate",
        module=step.module,
        function=ElementwiseLine(torch.ones_like(value, dtype=torch.bool)),
        arguments=[Slot(step.output)],
        keywords={},
        output=step.output + 1,
        shape=step.shape,
        site=site,
    )
    return [step, identity]


def _site(node: Node, value: Any, names: Counter[str]) -> Site:
    """Return the site on a node's output, named after its module; repeated names are counted."""
    operation = operation_name(node.target).removeprefix("aten.").partition(".")[0]
    path = module_path(node)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    is_activation = bool(stack) and str(stack[-1][1]).startswith("torch.nn.modules.activation")
    name = path if is_activation else f"{path}.{operation.rpartition('+')[2]}".lstrip(".")
    names[name] += 1
    if names[name] > 1:
        name = f"{name}:{names[name]}"
    return Site(name, operation, tuple(value.shape))


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer tensor, such as a winner's index: constant around x."""
    return isinstance(value, Tensor) and not value.is_floating_point()


def _roles_in(argument: Any, roles: Mapping[Node, Role]) -> list[Role]:
    """Return the roles of the nodes in an argument that depend on the input."""
    if isinstance(argument, Node):
        return [roles[argument]] if argument in roles else []
    if isinstance(argument, list | tuple):
        return [role for item in argument for role in _roles_in(item, roles)]
    return []


def _reads(argument: Any, slots: Mapping[Node, Slot]) -> bool:
    """Return whether an argument contains the result of a step."""
    if isinstance(argument, Node):
        return argument in slots
    return isinstance(argument, list | tuple) and any(_reads(item, slots) for item in argument)


@torch.no_grad()
def check_exactness(
    captured: CapturedGraph,
    frozen: FrozenGraph,
    inputs: Tensor,
    outputs: Tensor,
    *,
    line: LineRule = tangent,
    overrides: Mapping[str, Rule] | None = None,
) -> float:
    """Return the frozen network's relative error against the model's `outputs`.

    Raises:
        InexactCapture: If the error exceeds the tolerance of the outputs' dtype.
    """
    error = relative_error(frozen.output, outputs)
    tolerance = TOLERANCE[outputs.dtype]
    if error <= tolerance:
        return error
    if not torch.isfinite(frozen.output).all():
        raise InexactCapture(
            "the model computes with infinite values, such as those of masked_fill(…, -inf), for "
            "which there is no linear network; use a large finite number instead"
        )
    graph_error, place = _audit(captured, inputs, outputs, line=line, overrides=overrides)
    if graph_error > tolerance:
        nodes = [node for node in captured.graph.nodes if node.op == "call_function"]
        random = [node for node in nodes if cause_of(operation_name(node.target)) is RANDOM]
        if random:
            raise InexactCapture(str(unsupported_error(random[0], NO_RULE)))
        raise InexactCapture(
            f"the captured graph's output differs from the model's by {graph_error:.1e} relative "
            f"(allowed {tolerance:.0e}), because forward() uses randomness, or a value that it "
            "keeps from the call before; explain a model that takes such a value as an input"
        )
    raise InexactCapture(
        f"the linear network's output differs from the model's by {error:.1e} relative "
        f"(allowed {tolerance:.0e}), first at {place}"
    )


def _audit(
    captured: CapturedGraph,
    inputs: Tensor,
    outputs: Tensor,
    *,
    line: LineRule,
    overrides: Mapping[str, Rule] | None,
) -> tuple[float, str]:
    """Return the captured graph's own error, and the first operation that is frozen inexactly."""
    inexact: list[str] = []

    def compare(step: LinearStep, arguments: Any, result: Any) -> None:
        frozen_result = step.function(*arguments)
        is_wrong = isinstance(result, Tensor) and (
            relative_error(frozen_result, result) > TOLERANCE[outputs.dtype]
        )
        if is_wrong:
            inexact.append(step.module or step.name)

    audited = freeze(captured, inputs, line=line, overrides=overrides, audit=compare)
    place = f"'{inexact[0]}'" if inexact else "no single operation: rounding adds up"
    return relative_error(audited.output, outputs), place
