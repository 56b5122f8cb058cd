"""Every operation of ONNX files that dmbp knows, and how one is computed.

An ONNX file's graph: its nodes in order, its constants, its input and its output.

What depends on constants alone is computed once, here: weights that a file transposes, indices, and
the sizes it spells out.

A graph of an ONNX file as a module, an operation a submodule that owns its weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.errors import ModelError
from dmbp.models.onnx.call import Implementation, NodeCall, OnnxValue, as_numbers, settled
from dmbp.models.onnx.elements import ELEMENTS
from dmbp.models.onnx.layers import LAYERS, NORMS
from dmbp.models.onnx.numbers import NUMBERS
from dmbp.models.onnx.views import REDUCTIONS, VIEWS
from dmbp.models.onnx.windows import POOLINGS, RESIZINGS

OPERATIONS: Mapping[str, Implementation] = {
    **ELEMENTS,
    **VIEWS,
    **LAYERS,
    **NORMS,
    **POOLINGS,
    **REDUCTIONS,
    **RESIZINGS,
}
"""A new operation is one row in one of these tables."""

HARMLESS = {
    *("kernel_shape", "momentum", "spatial", "ratio", "seed", "storage_order", "sorted"),
    *("stash_type", "saturate", "round_mode", "is_test", "consumed_inputs", "outputs"),
}
"""Attributes that change nothing here: said twice, for training, or for other results."""


def compute(call: NodeCall) -> Any:
    """The result of a call: numbers where its inputs are and its result can be, else tensors.

    An attribute that nobody has asked for is refused: it would be ignored silently.
    """
    row = NUMBERS.get(call.operation)
    if row is not None and not any(isinstance(value, Tensor) for value in call.inputs):
        numbers = row(call)
        if numbers is not NotImplemented:
            return numbers
    result = OPERATIONS[call.operation](call)
    for name, value in call.attributes.items():
        is_neutral = name in HARMLESS or (isinstance(value, list) and set(value) == {1})
        if name not in call.asked and not is_neutral:
            raise ModelError(f"{call.operation} with {name}={value} is not supported in ONNX files")
    return result


@dataclass(frozen=True)
class Node:
    """One operation; inputs and outputs by name, an empty one where there is none."""

    name: str
    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int

    def call(self, values: Mapping[str, OnnxValue], images: Tensor) -> NodeCall:
        """The call of this operation on values."""
        inputs = [values[name] if name else None for name in self.inputs]
        attributes = {**self.attributes, "outputs": len(self.outputs)}
        return NodeCall(self.operation, inputs, attributes, self.version, images)

    def results(self, found: Any) -> dict[str, OnnxValue]:
        """What it computed, by name."""
        several = found if isinstance(found, tuple) else (found,)
        if self.operation == "Split" and len(several) < len(self.outputs):
            raise ModelError(f"Split gives {len(several)} parts, not {len(self.outputs)}")
        return {name: value for name, value in zip(self.outputs, several, strict=False) if name}


@dataclass(frozen=True)
class Graph:
    """Nodes from the input to the output, and the constants they read."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, OnnxValue]
    input: str
    output: str


def read_graph(proto: Any, given: str, wanted: str) -> Graph:
    """The graph of an ONNX model from one of its inputs to one of its outputs."""
    version = next(one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))
    nodes = tuple(_node(one, version) for one in proto.graph.node)
    constants = {one.name: settled(_tensor(one)) for one in proto.graph.initializer}
    return _needed(_folded(Graph(nodes, constants, given, wanted)))


def operation_of(proto: Any) -> str:
    """What a node of a file does: `Conv`, or with its domain where that is not ONNX's own."""
    own = proto.domain in ("", "ai.onnx")
    return str(proto.op_type if own else f"{proto.domain}.{proto.op_type}")


def _node(proto: Any, version: int) -> Node:
    from onnx import helper

    usual = _defaults(proto, version)
    given = {one.name: helper.get_attribute_value(one) for one in proto.attribute}
    attributes = {k: _plain(value) for k, value in given.items() if usual.get(k) != value}
    if proto.op_type == "ConstantOfShape" and "value" in attributes:
        attributes["value"] = attributes["value"].item()  # inside a trace a tensor has no number
    name = proto.name or proto.op_type
    return Node(
        name, operation_of(proto), tuple(proto.input), tuple(proto.output), attributes, version
    )


def _defaults(proto: Any, version: int) -> dict[str, Any]:
    """What an operation's attributes are where a file does not say."""
    from onnx import defs, helper

    if not defs.has(proto.op_type, proto.domain):
        return {}
    schema = defs.get_schema(proto.op_type, version, proto.domain)
    said = {k: attribute.default_value for k, attribute in schema.attributes.items()}
    return {k: helper.get_attribute_value(one) for k, one in said.items() if one.type}


def _plain(attribute: Any) -> Any:
    from onnx import TensorProto

    if isinstance(attribute, TensorProto):
        return _tensor(attribute)
    if isinstance(attribute, bytes):
        return attribute.decode()
    return list(attribute) if isinstance(attribute, list | tuple) else attribute


def _tensor(proto: Any) -> Tensor:
    """A tensor of the file; half precision is made single."""
    from onnx import numpy_helper

    array = numpy_helper.to_array(proto)
    is_half = array.dtype.kind in "fV" and array.dtype.itemsize < 4
    return torch.from_numpy(array.astype("float32") if is_half else array.copy())


def _folded(graph: Graph) -> Graph:
    """The graph without the nodes that depend on constants alone."""
    constants: dict[str, OnnxValue] = {**graph.constants}
    kept: list[Node] = []
    floats = [one for one in constants.values() if isinstance(one, Tensor)]
    widest = max((one.dtype for one in floats if one.is_floating_point()), key=_width, default=None)
    anywhere = torch.empty(0, dtype=widest)
    for node in graph.nodes:
        if node.operation == "Constant":
            constants[node.outputs[0]] = settled(next(iter(node.attributes.values())))
        elif all(name in constants for name in node.inputs if name):
            found = node.results(compute(node.call(constants, anywhere)))
            constants |= {name: settled(value) for name, value in found.items()}
        else:
            kept.append(node)
    return replace(graph, nodes=tuple(kept), constants=constants)


def _needed(graph: Graph) -> Graph:
    """The graph without what its output does not depend on."""
    names, kept = {graph.output}, list[Node]()
    for node in reversed(graph.nodes):
        if names.intersection(node.outputs):
            kept.append(node)
            names.update(name for name in node.inputs if name)
    constants = {name: value for name, value in graph.constants.items() if name in names}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def _width(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits


_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LayerNormalization", "GroupNormalization")
_ROLES = {
    **{layer: {1: "weight", 2: "bias"} for layer in _LAYERS},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "mean", 4: "variance"},
}
"""What layers call their constants, by position."""

_READS_NUMBERS = ("Resize", "Upsample", "Clip")
"""Operations whose float constants are settings, no weights."""


class OnnxOperation(nn.Module):
    """One node; floats among its constants are parameters, other tensors buffers."""

    def __init__(self, node: Node, constants: dict[str, OnnxValue]) -> None:
        super().__init__()
        self.node = node
        self._numbers: dict[str, OnnxValue] = {}
        self._tensors: dict[str, str] = {}
        for position, name in enumerate(node.inputs):
            if name in constants:
                self._keep(position, name, constants[name])

    def _keep(self, position: int, name: str, constant: OnnxValue) -> None:
        if not isinstance(constant, Tensor) or self.node.operation in _READS_NUMBERS:
            self._numbers[name] = as_numbers(constant)
            return
        role = _ROLES.get(self.node.operation, {}).get(position, f"constant_{position}")
        self._tensors[name] = role
        if isinstance(constant, nn.Parameter):
            self.register_parameter(role, constant)
        else:
            self.register_buffer(role, constant)

    def forward(self, values: dict[str, OnnxValue], images: Tensor) -> Any:
        """The results by name, from the values computed so far."""
        own = {name: getattr(self, role) for name, role in self._tensors.items()}
        call = self.node.call({**values, **own, **self._numbers}, images)
        return self.node.results(compute(call))


class OnnxModule(nn.Module):
    """Runs the operations of a graph one after the other."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._input, self._output = graph.input, graph.output
        constants = {name: _owned(value) for name, value in graph.constants.items()}
        for node in graph.nodes:
            name = _unique(_path(node.name), dict(self.named_children()))
            self.add_module(name, OnnxOperation(node, constants))
        self._last_reads = _last_reads(graph)

    def forward(self, images: Tensor) -> Tensor:
        """The output of the file's network."""
        values: dict[str, OnnxValue] = {self._input: images}
        for operation, finished in zip(self.children(), self._last_reads, strict=True):
            values.update(operation(values, images))
            for name in finished:
                values.pop(name, None)
        return values[self._output]


def _owned(constant: OnnxValue) -> OnnxValue:
    is_weight = isinstance(constant, Tensor) and constant.is_floating_point()
    return nn.Parameter(constant, requires_grad=False) if is_weight else constant


def _path(name: str) -> str:
    """A node's name as that of a submodule, which has no dots and is no module's own."""
    path = name.strip("/").replace(".", "_") or "operation"
    return f"{path}_" if hasattr(nn.Module, path) or path in ("training",) else path


def _unique(name: str, taken: Iterable[str]) -> str:
    others = (f"{name}_{k}" for k in count(2))
    return next(free for free in chain([name], others) if free not in taken)


def _last_reads(graph: Graph) -> list[list[str]]:
    """For each node the values that no later one reads: they are let go."""
    last = {name: k for k, node in enumerate(graph.nodes) for name in node.inputs if name}
    last.pop(graph.output, None)
    return [[n for n in node.inputs if last.get(n) == k] for k, node in enumerate(graph.nodes)]
