"""An ONNX file's graph: its nodes in order, its constants, its input and its output.

What depends on constants alone is computed once, here: weights that a file transposes, indices, and
the sizes it spells out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Value, settled
from dmbp.models.onnx_files.operations import compute


@dataclass(frozen=True)
class Node:
    """One operation; inputs and outputs by name, an empty one where there is none."""

    name: str
    operation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int

    def call(self, values: Mapping[str, Value], images: Tensor) -> Call:
        """The call of this operation on values."""
        inputs = [values[name] if name else None for name in self.inputs]
        attributes = {**self.attributes, "outputs": len(self.outputs)}
        return Call(self.operation, inputs, attributes, self.version, images)

    def results(self, found: Any) -> dict[str, Value]:
        """What it computed, by name."""
        several = found if isinstance(found, tuple) else (found,)
        if self.operation == "Split" and len(several) < len(self.outputs):
            raise ModelError(f"Split gives {len(several)} parts, not {len(self.outputs)}")
        return {name: value for name, value in zip(self.outputs, several, strict=False) if name}


@dataclass(frozen=True)
class Graph:
    """Nodes from the input to the output, and the constants they read."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, Value]
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
    constants: dict[str, Value] = {**graph.constants}
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
