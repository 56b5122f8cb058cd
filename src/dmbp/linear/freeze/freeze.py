"""Runs a captured graph once at x and freezes every operation there.

What does not depend on the input becomes a constant; what is left is a short list of steps, each a
linear function of earlier ones. A frozen operation is run in its frozen form, so that the output of
this one pass is the linear network's.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.linear.capture.composite import rule_of
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.lines import ElementwiseLine, LineRule, tangent
from dmbp.linear.rules.base import Function, OperationCall, Place, Role, Rule, least
from dmbp.linear.rules.table import (
    all_unsupported,
    constant_output,
    module_path,
    operation_name,
)
from dmbp.linear.steps import FrozenGraph, Site, Slot, Step, with_finished

IDENTITY = "identity"
"""The operation of a step that stands for no node: the site behind a product."""

Audit = Callable[[Step, Sequence[Any], Any], None]


@torch.no_grad()
def freeze(
    captured: CapturedGraph, inputs: Tensor, *, line: LineRule = tangent, audit: Audit | None = None
) -> FrozenGraph:
    """Freeze every operation at `inputs`, smooth activations by a `line`.

    With an `audit` operations run as they are: it is shown each step, the arguments its operation
    was called with, and its result, and the output is the captured graph's own.
    """
    values: dict[Node, Any] = {n: t.detach() for n, t in captured.constants.items()}
    values[captured.input] = inputs
    slots: dict[Node, Slot] = {captured.input: Slot(0)}
    roles: dict[Node, Role] = {captured.input: Role.PLAIN}
    steps: list[Step] = []
    names: Counter[str] = Counter()
    refused: list[tuple[Node, str]] = []
    last_reader = {parent: node for node in captured.graph.nodes for parent in node.all_input_nodes}
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        call = _call(node, values, slots, roles, line)
        rule = rule_of(node.target)
        depends = rule is not None and any(parent in roles for parent in node.all_input_nodes)
        frozen = None
        if rule is not None and depends:
            roles[node] = rule.role(call)
            reason = rule.refusal(call) if call.active else None
            if reason is not None:
                refused.append((node, reason))
                call = _on_copies(call)
            frozen = _stand_in(rule, call, is_refused=reason is not None)
        runs = call.function if audit is not None or frozen is None else frozen
        values[node] = runs(*call.arguments, **call.keywords)
        if rule is not None and frozen is not None and not _is_index(values[node]):
            site = _site(node, values[node], names) if rule.masks(call) else None
            step = _step(node, rule, frozen, held=rule.held(call), slots=slots, values=values)
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
        raise all_unsupported(refused)
    if captured.output not in slots:
        raise constant_output(captured.output)
    result = slots[captured.output].index
    return FrozenGraph(with_finished(steps, result), result, values[captured.output])


def _is_index(value: Any) -> bool:
    """Whether a value is of whole numbers, as a winner's index is: a constant around x."""
    return isinstance(value, Tensor) and not value.is_floating_point()


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _call(
    node: Node,
    values: Mapping[Node, Any],
    slots: Mapping[Node, Slot],
    roles: Mapping[Node, Role],
    line: LineRule,
) -> OperationCall:
    def concrete(argument: Any) -> Any:
        return torch.fx.map_arg(argument, values.__getitem__)

    assert callable(node.target)
    places: dict[Place, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    return OperationCall(
        node.target,
        concrete(node.args),
        concrete(node.kwargs),
        active=frozenset(place for place, given in places.items() if _reads(given, slots)),
        roles={
            place: least(found) for place, given in places.items() if (found := _of(given, roles))
        },
        line=line,
    )


def _step(
    node: Node,
    rule: Rule,
    function: Function,
    *,
    held: frozenset[Place],
    slots: Mapping[Node, Slot],
    values: Mapping[Node, Any],
) -> Step:
    """A step that computes a node, with the arguments that are `held` as they are at x."""

    def given(place: Place, argument: Any) -> Any:
        return _template(argument, {} if place in held else slots, values)

    return Step(
        name=node.name,
        operation=operation_name(node.target),
        kind=rule.kind,
        module=module_path(node),
        function=function,
        arguments=[given(place, argument) for place, argument in enumerate(node.args)],
        keywords={name: given(name, argument) for name, argument in node.kwargs.items()},
        output=0,
        shape=_shape(values[node]),
        site=None,
    )


def _with_site(step: Step, site: Site | None, value: Any) -> list[Step]:
    """A step that carries a mask; what is no line by itself is followed by one that is."""
    if site is None or isinstance(step.function, ElementwiseLine):
        return [replace(step, site=site)]
    passed = Step(
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
    return [step, passed]


def _stand_in(rule: Rule, call: OperationCall, *, is_refused: bool) -> Function | None:
    """The node's linear function; None where its value is a constant of the linear network.

    One that is refused stands for itself, so that others behind it are refused with it.
    """
    if not call.active:
        return None
    return call.function if is_refused else rule.freeze(call)


def _on_copies(call: OperationCall) -> OperationCall:
    """The call on copies of its tensors: batch norm in training mode writes to the model's own."""

    def copied(argument: Any) -> Any:
        return argument.clone() if isinstance(argument, Tensor) else argument

    return replace(call, arguments=[copied(argument) for argument in call.arguments])


def _of(argument: Any, roles: Mapping[Node, Role]) -> list[Role]:
    """The roles of the nodes in an argument that depend on the input."""
    if isinstance(argument, Node):
        return [roles[argument]] if argument in roles else []
    if isinstance(argument, list | tuple):
        return [role for item in argument for role in _of(item, roles)]
    return []


def _reads(argument: Any, slots: Mapping[Node, Slot]) -> bool:
    if isinstance(argument, Node):
        return argument in slots
    return isinstance(argument, list | tuple) and any(_reads(item, slots) for item in argument)


def _template(argument: Any, slots: Mapping[Node, Slot], values: Mapping[Node, Any]) -> Any:
    def stand_in(node: Node) -> Any:
        return slots.get(node, values[node])

    return torch.fx.map_arg(argument, stand_in)


def _site(node: Node, value: Any, names: Counter[str]) -> Site:
    operation = operation_name(node.target).removeprefix("aten.").partition(".")[0]
    path = module_path(node)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    is_activation = bool(stack) and str(stack[-1][1]).startswith("torch.nn.modules.activation")
    name = path if is_activation else f"{path}.{operation.rpartition('+')[2]}".lstrip(".")
    names[name] += 1
    if names[name] > 1:
        name = f"{name}:{names[name]}"
    return Site(name, operation, tuple(value.shape))
