"""Replaces the control flow of an ONNX graph, `If` and `Loop`, by the nodes that it runs.

Exporters write an `If` for a choice that sizes or settings decide, such as the sampling rate of a
sound, and a `Loop` for a fixed number of steps. Such a condition is a Python number once constants
and sizes are computed; the nodes of the branch, or of every step, then take the place of the node.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import OnnxValue

CONTROL_FLOW = ("If", "Loop")

MAX_STEPS = 1024
"""The most steps of a loop, each of which becomes nodes of its own."""

ReadNode = Callable[[Any], Any]
"""Reads a node of the file."""

ReadTensor = Callable[[Any], OnnxValue]
"""Reads a constant of the file."""


class Unrolled:
    """What takes the place of one `If` or `Loop`: nodes of the file, and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add_graph(self, graph: Any) -> None:
        """Add the nodes and constants of a branch or of a step."""
        self.nodes.extend(graph.node)
        self.constants |= {tensor.name: tensor for tensor in graph.initializer}

    def rename(self, old: str, new: str) -> None:
        """Add a node that gives a value a second name."""
        from onnx import helper

        if old and new:
            self.nodes.append(helper.make_node("Identity", [old], [new], name=f"{new}:Identity"))


def unroll(proto: Any, values: Mapping[str, OnnxValue]) -> Unrolled | None:
    """Return what an `If` or a `Loop` runs, or None if `values` do not decide that.

    Args:
        proto: The node of the file.
        values: What is known by name: constants, and numbers computed from sizes.

    Raises:
        ModelError: If a loop has too many steps.
    """
    return _branch(proto, values) if proto.op_type == "If" else _first_step(proto, values)


def _branch(proto: Any, values: Mapping[str, OnnxValue]) -> Unrolled | None:
    condition = truth(values.get(proto.input[0]))
    if condition is None:
        return None
    graph = _attribute(proto, "then_branch" if condition else "else_branch").g
    unrolled = Unrolled()
    unrolled.add_graph(graph)
    for output, name in zip(graph.output, proto.output, strict=True):
        unrolled.rename(output.name, name)
    return unrolled


def _first_step(proto: Any, values: Mapping[str, OnnxValue]) -> Unrolled | None:
    """Return the next step of a loop and a loop for what is left, or the end of the loop.

    The step's number, and the names of what earlier steps collected, are kept in attributes.
    """
    from onnx import helper

    most, condition, *carried = proto.input
    limit = values.get(most) if most else MAX_STEPS + 1
    goes_on = truth(values.get(condition)) if condition else True
    step = _integer(proto, "step", 0)
    if isinstance(limit, list) and len(limit) == 1:
        limit = limit[0]
    if not isinstance(limit, int) or goes_on is None:
        return None
    body = _attribute(proto, "body").g
    collected = _strings(proto, "collected")
    scans = len(body.output) - 1 - len(carried)
    unrolled = Unrolled()
    if step >= limit or not goes_on:
        for value, name in zip(carried, proto.output, strict=False):
            unrolled.rename(value, name)
        for scan, name in enumerate(proto.output[len(carried) :]):
            parts = collected[scan::scans]
            unrolled.nodes.append(helper.make_node("Concat", parts, [name], axis=0, name=name))
        return unrolled
    if step >= MAX_STEPS:
        raise ModelError(f"a loop of the file has more than {MAX_STEPS} steps")
    body = _renamed(body, f"/{proto.output[0]}:{step}", {})
    number, going, *own = (value.name for value in body.input)
    unrolled.constants[number] = helper.make_tensor(number, 7, [], [step])
    if condition:
        unrolled.rename(condition, going)
    else:
        unrolled.constants[going] = helper.make_tensor(going, 9, [], [True])
    for value, name in zip(carried, own, strict=True):
        unrolled.rename(value, name)
    unrolled.add_graph(body)
    results = [value.name for value in body.output]
    for result in results[1 + len(carried) :]:
        axes = f"{result}:axes"
        unrolled.constants[axes] = helper.make_tensor(axes, 7, [1], [0])
        unrolled.nodes.append(
            helper.make_node("Unsqueeze", [result, axes], [f"{result}:row"], name=axes)
        )
        collected = [*collected, f"{result}:row"]
    rest = helper.make_node(
        "Loop", [most, *results[: 1 + len(carried)]], list(proto.output), name=proto.name
    )
    rest.attribute.extend([_attribute(proto, "body"), helper.make_attribute("step", step + 1)])
    if collected:
        rest.attribute.append(helper.make_attribute("collected", collected))
    unrolled.nodes.append(rest)
    return unrolled


def truth(value: OnnxValue) -> bool | None:
    """Return a condition as a truth value, or None if it is not known before the model runs."""
    if isinstance(value, list):
        return bool(value[0]) if len(value) == 1 and isinstance(value[0], bool | int) else None
    if isinstance(value, Tensor):
        is_known = not isinstance(value, FakeTensor) and value.numel() == 1
        return bool(value.item()) if is_known else None
    return bool(value) if isinstance(value, bool | int) else None


def _attribute(proto: Any, name: str) -> Any:
    return next(attribute for attribute in proto.attribute if attribute.name == name)


def _integer(proto: Any, name: str, default: int) -> int:
    found = [attribute.i for attribute in proto.attribute if attribute.name == name]
    return found[0] if found else default


def _strings(proto: Any, name: str) -> list[str]:
    found = [attribute.strings for attribute in proto.attribute if attribute.name == name]
    return [text.decode() for text in found[0]] if found else []


def _renamed(graph: Any, suffix: str, outer: Mapping[str, str]) -> Any:
    """Return a copy of a loop's body in which every name that it defines has a suffix."""
    copy = type(graph)()
    copy.CopyFrom(graph)
    own = [value.name for value in (*copy.input, *copy.initializer)]
    own += [name for node in copy.node for name in node.output if name]
    names = {**outer, **{name: f"{name}{suffix}" for name in own}}
    for value in (*copy.input, *copy.output, *copy.initializer):
        value.name = names.get(value.name, value.name)
    for node in copy.node:
        for values in (node.input, node.output):
            renamed = [names.get(name, name) for name in values]
            del values[:]
            values.extend(renamed)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                attribute.g.CopyFrom(_renamed(attribute.g, suffix, names))
    return copy
