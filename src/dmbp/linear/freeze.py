"""Runs a captured graph once at x and freezes every operation there.

What does not depend on the input becomes a constant; what is left is a short list of steps, each a
linear function of earlier ones. A frozen operation is run in its frozen form, so that the output of
this one pass is the linear network's.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.linear.capture import CapturedGraph, module_path, unsupported
from dmbp.linear.rule import Call, Function
from dmbp.linear.rules import RULES, operation_name


@dataclass(frozen=True)
class Site:
    """The output of an activation, where a mask sits.

    `name` is the path of the module it came from, with `:2`, `:3`… where that module has several.
    """

    name: str
    operation: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Stands in a step's arguments for the result of an earlier step."""

    index: int


@dataclass(frozen=True)
class Step:
    """One linear function of the network: `slots[output] = function(*arguments, **keywords)`.

    `operation` and `kind` are those of its row in the table, `module` is the path of the module it
    came from, `shape` that of its result, None where that is no tensor, and `finished` lists the
    slots that no later step reads.
    """

    name: str
    operation: str
    kind: str
    module: str
    function: Function
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    output: int
    shape: tuple[int, ...] | None
    site: Site | None
    finished: tuple[int, ...] = ()

    def apply(self, slots: Mapping[int, Any]) -> Any:
        """The step's result from those of earlier steps."""
        keywords = {name: fill(value, slots) for name, value in self.keywords.items()}
        return self.function(*fill(self.arguments, slots), **keywords)

    @property
    def reads(self) -> list[int]:
        """The slots it is a function of."""
        return _slots_in((self.arguments, tuple(self.keywords.values())))


@dataclass(frozen=True)
class FrozenGraph:
    """The steps from `slots[0]`, the input, to `slots[result]`; and their output at x."""

    steps: tuple[Step, ...]
    result: int
    output: Tensor


Audit = Callable[[Step, Sequence[Any], Any], None]


def fill(template: Any, slots: Mapping[int, Any]) -> Any:
    """Replace every `Slot` in nested lists and tuples by the value it stands for."""
    if isinstance(template, Slot):
        return slots[template.index]
    if isinstance(template, list | tuple):
        return type(template)(fill(item, slots) for item in template)
    return template


@torch.no_grad()
def freeze(captured: CapturedGraph, inputs: Tensor, *, audit: Audit | None = None) -> FrozenGraph:
    """Freeze every operation at `inputs`.

    With an `audit` operations run as they are: it is shown each step, the arguments its operation
    was called with, and its result, and the output is the captured graph's own.
    """
    values: dict[Node, Any] = {n: t.detach() for n, t in captured.constants.items()}
    values[captured.input] = inputs
    slots: dict[Node, Slot] = {captured.input: Slot(0)}
    steps: list[Step] = []
    names: Counter[str] = Counter()
    last_reader = {parent: node for node in captured.graph.nodes for parent in node.all_input_nodes}
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        function, arguments, keywords = _call(node, values)
        frozen = _stand_in(node, arguments, keywords, slots)
        runs = function if audit is not None or frozen is None else frozen
        values[node] = runs(*arguments, **keywords)
        if frozen is not None:
            step = Step(
                name=node.name,
                operation=operation_name(node.target),
                kind=RULES[operation_name(node.target)].kind,
                module=module_path(node),
                function=frozen,
                arguments=_template(node.args, slots, values),
                keywords={k: _template(v, slots, values) for k, v in node.kwargs.items()},
                output=len(steps) + 1,
                shape=_shape(values[node]),
                site=_site(node, values[node], names),
            )
            if audit is not None:
                audit(step, arguments, values[node])
            slots[node] = Slot(step.output)
            steps.append(step)
        for parent in node.all_input_nodes:
            if last_reader[parent] is node:
                del values[parent]
    if captured.output not in slots:
        raise unsupported(captured.output, "the output does not depend on the input")
    result = slots[captured.output].index
    return FrozenGraph(with_finished(steps, result), result, values[captured.output])


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _call(node: Node, values: Mapping[Node, Any]) -> tuple[Function, Any, Any]:
    def concrete(argument: Any) -> Any:
        return torch.fx.map_arg(argument, values.__getitem__)

    assert callable(node.target)
    return node.target, concrete(node.args), concrete(node.kwargs)


def _stand_in(
    node: Node, arguments: Any, keywords: Any, slots: Mapping[Node, Slot]
) -> Function | None:
    """The node's linear function; None where its value is a constant of the linear network."""
    rule = RULES.get(operation_name(node.target))
    if rule is None or not any(parent in slots for parent in node.all_input_nodes):
        return None
    active = {k for k, v in enumerate(node.args) if _reads(v, slots)}
    named = {k for k, v in node.kwargs.items() if _reads(v, slots)}
    assert callable(node.target)
    call = Call(node.target, arguments, keywords, frozenset(active | named))
    reason = rule.refusal(call)
    if reason is not None:
        raise unsupported(node, reason)
    return rule.freeze(call)


def _reads(argument: Any, slots: Mapping[Node, Slot]) -> bool:
    if isinstance(argument, Node):
        return argument in slots
    return isinstance(argument, list | tuple) and any(_reads(item, slots) for item in argument)


def _template(argument: Any, slots: Mapping[Node, Slot], values: Mapping[Node, Any]) -> Any:
    def stand_in(node: Node) -> Any:
        return slots.get(node, values[node])

    return torch.fx.map_arg(argument, stand_in)


def _site(node: Node, value: Any, names: Counter[str]) -> Site | None:
    if not RULES[operation_name(node.target)].masked:
        return None
    operation = operation_name(node.target).split(".")[1]
    path = module_path(node)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    is_activation = bool(stack) and str(stack[-1][1]).startswith("torch.nn.modules.activation")
    name = path if is_activation else f"{path}.{operation}".lstrip(".")
    names[name] += 1
    if names[name] > 1:
        name = f"{name}:{names[name]}"
    return Site(name, operation, tuple(value.shape))


def with_finished(steps: Sequence[Step], result: int) -> tuple[Step, ...]:
    """Drop steps the result does not need, and note after which step each slot is done with."""
    needed = {result}
    kept: list[Step] = []
    for step in reversed(steps):
        if step.output not in needed:
            continue
        reads = set(step.reads)
        finished = tuple(reads - needed)
        needed |= reads
        kept.append(replace(step, finished=finished))
    return tuple(reversed(kept))


def _slots_in(template: Any) -> list[int]:
    if isinstance(template, Slot):
        return [template.index]
    if isinstance(template, list | tuple):
        return [index for item in template for index in _slots_in(item)]
    return []
