"""The graph of an ONNX file, and the module that runs it.

`read_graph` turns the file's nodes into `Node` objects, computes once whatever depends on constants
alone (transposed weights, indices, fixed shapes), replaces branches and loops by what they run, and
drops the nodes that the output does not depend on. `OnnxModule` has one submodule for each
remaining node, which holds its weights.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dmbp.errors import ModelError
from dmbp.models.onnx.branches import CONTROL_FLOW, unroll
from dmbp.models.onnx.operators import OPERATORS, compute
from dmbp.models.onnx.operators.call import NodeCall, OnnxValue, as_numbers, as_numbers_if_shape
from dmbp.process import silence_output


@dataclass(frozen=True)
class Node:
    """An operator with its attributes; an omitted input or output has an empty name."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int
    proto: Any = field(default=None, compare=False)
    """The node of the file, if it is an `If` or a `Loop`."""

    def call(self, values: Mapping[str, OnnxValue], images: Tensor) -> NodeCall:
        """Return the call of this node with its inputs taken from `values` by name."""
        inputs = [values[name] if name else None for name in self.inputs]
        attributes = {**self.attributes, "outputs": len(self.outputs)}
        return NodeCall(self.operator, inputs, attributes, self.version, images)

    def outputs_by_name(self, result: Any) -> dict[str, OnnxValue]:
        """Return the result of `compute` for this node by the names of its outputs."""
        values = result if isinstance(result, tuple) else (result,)
        if self.operator == "Split" and len(values) < len(self.outputs):
            raise ModelError(f"Split gives {len(values)} parts, not {len(self.outputs)}")
        return {name: value for name, value in zip(self.outputs, values, strict=False) if name}


@dataclass(frozen=True)
class OnnxGraph:
    """Nodes in the order of computation, and the constants they read."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, OnnxValue]
    input: str
    output: str


def read_graph(
    proto: Any,
    input_name: str,
    output_name: str,
    *,
    held: Mapping[str, OnnxValue] | None = None,
    example: Tensor | None = None,
) -> OnnxGraph:
    """Return the part of an ONNX model's graph that computes one output from one input.

    Args:
        proto: The model.
        input_name: The input that varies.
        output_name: The output to compute.
        held: The values of all other inputs.
        example: An input, of which only the size matters; it decides about branches and loops that
            constants do not decide.

    Returns:
        The graph without control flow, unless that depends on more than sizes and constants.
    """
    version = next(opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx"))
    nodes = tuple(_read_node(node, version) for node in proto.graph.node)
    constants = {
        initializer.name: as_numbers_if_shape(_read_tensor(initializer))
        for initializer in proto.graph.initializer
    }
    graph = OnnxGraph(nodes, {**constants, **(held or {})}, input_name, output_name)
    folded = _without_unused(_with_constants_folded(graph))
    if example is not None and any(node.operator in CONTROL_FLOW for node in folded.nodes):
        folded = _with_constants_folded(_without_control_flow(folded, example))
    return _without_unused(folded)


def _unrolled(
    node: Node, values: Mapping[str, OnnxValue]
) -> tuple[list[Node], dict[str, OnnxValue]] | None:
    """Return the nodes that a branch or a loop runs and their constants, if that is decided."""
    found = unroll(node.proto, values)
    if found is None:
        return None
    constants = {
        name: as_numbers_if_shape(_read_tensor(tensor)) for name, tensor in found.constants.items()
    }
    return [_read_node(proto, node.version) for proto in found.nodes], constants


def _without_control_flow(graph: OnnxGraph, example: Tensor) -> OnnxGraph:
    """Return the graph with branches and loops decided by sizes, which no data is needed for."""
    constants = dict(graph.constants)
    values: dict[str, OnnxValue] = {**constants, graph.input: example}
    kept: list[Node] = []
    pending = deque(graph.nodes)
    with silence_output(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as fake:
        values[graph.input] = fake.from_tensor(example)
        while pending:
            node = pending.popleft()
            if node.operator == "Constant":
                constants[node.outputs[0]] = _constant(node)
                values[node.outputs[0]] = constants[node.outputs[0]]
                continue
            unrolled = _unrolled(node, values) if node.operator in CONTROL_FLOW else None
            if unrolled is not None:
                pending.extendleft(reversed(unrolled[0]))
                constants |= unrolled[1]
                values |= unrolled[1]
                continue
            kept.append(node)
            if node.operator in OPERATORS and all(n in values for n in node.inputs if n):
                # What fails here is said when the model is run.
                with suppress(Exception):
                    call = node.call(values, values[graph.input])
                    values |= node.outputs_by_name(compute(call))
    return replace(graph, nodes=tuple(kept), constants=constants)


def _constant(node: Node) -> OnnxValue:
    return as_numbers_if_shape(next(iter(node.attributes.values())))


def operator_name(proto: Any) -> str:
    """Return a node's operator, such as `Conv`, with its domain unless that is ONNX's default."""
    is_standard = proto.domain in ("", "ai.onnx")
    return str(proto.op_type if is_standard else f"{proto.domain}.{proto.op_type}")


def _read_node(proto: Any, version: int) -> Node:
    from onnx import helper

    defaults = _default_attributes(proto, version)
    if operator_name(proto) in CONTROL_FLOW:
        return Node(
            proto.name or proto.op_type,
            proto.op_type,
            tuple(proto.input),
            tuple(proto.output),
            {},
            version,
            proto,
        )
    values = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute
    }
    attributes = {k: _to_python(value) for k, value in values.items() if defaults.get(k) != value}
    if proto.op_type == "ConstantOfShape" and "value" in attributes:
        attributes["value"] = attributes["value"].item()  # a trace cannot read a tensor's number
    name = proto.name or proto.op_type
    return Node(
        name, operator_name(proto), tuple(proto.input), tuple(proto.output), attributes, version
    )


def _default_attributes(proto: Any, version: int) -> dict[str, Any]:
    """Return the default values of an operator's attributes, which a file may omit."""
    from onnx import defs, helper

    if not defs.has(proto.op_type, proto.domain):
        return {}
    schema = defs.get_schema(proto.op_type, version, proto.domain)
    defaults = {k: attribute.default_value for k, attribute in schema.attributes.items()}
    return {
        k: helper.get_attribute_value(default) for k, default in defaults.items() if default.type
    }


def _to_python(attribute: Any) -> Any:
    from onnx import TensorProto

    if isinstance(attribute, TensorProto):
        return _read_tensor(attribute)
    if isinstance(attribute, bytes):
        return attribute.decode()
    return list(attribute) if isinstance(attribute, list | tuple) else attribute


def _read_tensor(proto: Any) -> Tensor:
    """Return a tensor of the file, with half precision converted to single."""
    from onnx import numpy_helper

    array = numpy_helper.to_array(proto)
    is_half = array.dtype.kind in "fV" and array.dtype.itemsize < 4
    return torch.from_numpy(array.astype("float32") if is_half else array.copy())


def _with_constants_folded(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph with the nodes that depend on constants alone computed as constants."""
    constants: dict[str, OnnxValue] = {**graph.constants}
    kept: list[Node] = []
    tensors = [constant for constant in constants.values() if isinstance(constant, Tensor)]
    float_dtypes = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
    widest = max(float_dtypes, key=_bits, default=None)
    no_images = torch.empty(0, dtype=widest)
    left = MAX_ELEMENTS + 2 * sum(tensor.numel() for tensor in tensors)
    pending = deque(graph.nodes)
    while pending:
        node = pending.popleft()
        is_constant = all(name in constants for name in node.inputs if name)
        if node.operator == "Constant":
            constants[node.outputs[0]] = _constant(node)
        elif node.operator in CONTROL_FLOW:
            unrolled = _unrolled(node, constants)
            if unrolled is None:
                kept.append(node)
            else:
                pending.extendleft(reversed(unrolled[0]))
                constants |= unrolled[1]
        elif is_constant and node.operator in OPERATORS:
            call = node.call(constants, no_images)
            _check_result_size(call)
            results = node.outputs_by_name(compute(call))
            constants |= {name: as_numbers_if_shape(value) for name, value in results.items()}
            left -= sum(value.numel() for value in results.values() if isinstance(value, Tensor))
            if left < 0:  # many constants of an allowed size take all memory, too
                raise TooLarge(f"its constants have more than {MAX_ELEMENTS:,} numbers")
        else:
            kept.append(node)
    return replace(graph, nodes=tuple(kept), constants=constants)


MAX_ELEMENTS = 2**28
"""The largest tensor that a file's network may compute: a gigabyte in single precision."""


class TooLarge(ModelError):
    """A tensor of the network would be too large."""


class SizeLimit(TorchDispatchMode):
    """Raises a `TooLarge` for a result with more than `MAX_ELEMENTS` elements.

    It is used inside of a `FakeTensorMode`, in which results have a shape but no data.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and check its results."""
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, list | tuple) else [results]:
            if isinstance(result, Tensor) and result.numel() > MAX_ELEMENTS:
                shape = "×".join(map(str, result.shape))
                raise TooLarge(
                    f"{func} would compute a tensor of {shape} numbers; dmbp computes at most "
                    f"{MAX_ELEMENTS:,}"
                )
        return results


def _check_result_size(call: NodeCall) -> None:
    """Raise a `TooLarge` if the results of a node would be too large; nothing is computed."""
    try:
        with silence_output(), FakeTensorMode(allow_non_fake_inputs=True), SizeLimit():
            compute(replace(call, attributes_read=set()))
    except TooLarge:
        raise
    except Exception:  # what is wrong with the node is said when it is computed
        return


def _without_unused(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph without the nodes and constants that its output does not depend on."""
    used, kept = {graph.output}, list[Node]()
    for node in reversed(graph.nodes):
        if used.intersection(node.outputs):
            kept.append(node)
            used.update(name for name in node.inputs if name)
            if node.proto is not None:
                used.update(_names_inside(node.proto))
    constants = {name: value for name, value in graph.constants.items() if name in used}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def _names_inside(proto: Any) -> set[str]:
    """Return every name that the graphs of a branch or a loop read."""
    graphs = [attribute.g for attribute in proto.attribute if attribute.HasField("g")]
    names = {name for graph in graphs for node in graph.node for name in node.input}
    names |= {value.name for graph in graphs for value in graph.output}
    return names.union(*(_names_inside(node) for graph in graphs for node in graph.node))


def _bits(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits


_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LayerNormalization", "GroupNormalization")
_PARAMETER_NAMES = {
    **{layer: {1: "weight", 2: "bias"} for layer in _LAYERS},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "mean", 4: "variance"},
}
"""Names of parameters by operator and input position."""

_WITHOUT_WEIGHTS = ("Resize", "Upsample", "Clip")
"""Operators whose float constants are settings rather than weights."""


class OnnxNodeModule(nn.Module):
    """Runs one node; its float constants are parameters, other constant tensors are buffers."""

    def __init__(self, node: Node, constants: dict[str, OnnxValue]) -> None:
        super().__init__()
        self.node = node
        self._numbers: dict[str, OnnxValue] = {}
        self._tensors: dict[str, str] = {}
        for position, name in enumerate(node.inputs):
            if name in constants:
                self._add_constant(position, name, constants[name])

    def _add_constant(self, position: int, name: str, constant: OnnxValue) -> None:
        if not isinstance(constant, Tensor) or self.node.operator in _WITHOUT_WEIGHTS:
            self._numbers[name] = as_numbers(constant)
            return
        parameter_name = _PARAMETER_NAMES.get(self.node.operator, {}).get(
            position, f"constant_{position}"
        )
        self._tensors[name] = parameter_name
        if isinstance(constant, nn.Parameter):
            self.register_parameter(parameter_name, constant)
        else:
            self.register_buffer(parameter_name, constant)

    def forward(self, values: dict[str, OnnxValue], images: Tensor) -> Any:
        """Return the node's results by name, given the values computed so far."""
        tensors = {
            name: getattr(self, parameter_name) for name, parameter_name in self._tensors.items()
        }
        call = self.node.call({**values, **tensors, **self._numbers}, images)
        return self.node.outputs_by_name(compute(call))


class OnnxModule(nn.Module):
    """Runs the nodes of a graph one after the other."""

    def __init__(self, graph: OnnxGraph) -> None:
        super().__init__()
        self._input, self._output = graph.input, graph.output
        constants = {name: _as_parameter(value) for name, value in graph.constants.items()}
        for node in graph.nodes:
            name = _unique_name(_submodule_name(node.name), dict(self.named_children()))
            self.add_module(name, OnnxNodeModule(node, constants))
        self._last_reads = _last_reads(graph)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores that the file's network computes."""
        values: dict[str, OnnxValue] = {self._input: images}
        for node, finished in zip(self.children(), self._last_reads, strict=True):
            values.update(node(values, images))
            for name in finished:
                values.pop(name, None)
        return values[self._output]


def _as_parameter(constant: OnnxValue) -> OnnxValue:
    is_weight = isinstance(constant, Tensor) and constant.is_floating_point()
    return nn.Parameter(constant, requires_grad=False) if is_weight else constant


def _submodule_name(name: str) -> str:
    """Return a node's name as a submodule's, which may not have dots or be an attribute's."""
    cleaned = name.strip("/").replace(".", "_") or "operation"
    is_attribute = hasattr(nn.Module, cleaned) or cleaned in ("training",)
    return f"{cleaned}_" if is_attribute else cleaned


def _unique_name(name: str, taken: Iterable[str]) -> str:
    numbered = (f"{name}_{k}" for k in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken)


def _last_reads(graph: OnnxGraph) -> list[list[str]]:
    """Return, for each node, the inputs that no later node reads and that can then be freed."""
    last = {name: k for k, node in enumerate(graph.nodes) for name in node.inputs if name}
    last.pop(graph.output, None)
    return [[n for n in node.inputs if last.get(n) == k] for k, node in enumerate(graph.nodes)]
