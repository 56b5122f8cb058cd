"""A captured graph as bytes that hold no code, and back.

    >>> from dmbp.linear.capture.export import capture
    >>> content = pack(capture(model, images), model, images)
    >>> unpack(content, model, images).output.name          # reads the model's own parameters
    'linear'

The format is compressed JSON behind its checksum: operations by name, arguments as plain values,
and tensors of the model by their names; the few tensors that `forward()` itself makes are stored.
Sizes that depend on the batch are those of a batch of `BATCH`, a number that no other size has.

Reading runs nothing from the file. Operations are looked up among those of `NAMESPACES` and
`FUNCTIONS` that only compute. Whether the graph is still the model's is for the reader to check.
"""

import base64
import json
import math
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from keyword import iskeyword
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph, Node

from dmbp.linear.capture.export import CapturedGraph

MAGIC = b"dmbp captured graph 1\n"

BATCH = 104_729
"""The batch size of stored shapes: a prime, so that a size that equals it depends on the batch."""

NAMESPACES = ("aten", "torchvision")

NOT_CALLED = frozenset(("aten::from_file", "aten::_print", "aten::_assert_async"))
"""Operations that do something else than compute."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in (
            *("getitem", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"),
        )
    },
    **{
        name: getattr(torch, name)
        for name in ("sym_max", "sym_min", "sym_float", "sym_int", "sym_not", "sym_ite", "sym_sum")
        if hasattr(torch, name)
    },
    **{name: getattr(math, name) for name in ("ceil", "floor", "trunc")},
}
"""Functions of sizes, by name."""

MOST_STORED = 2**18
"""The most bytes of tensors that do not belong to the model."""

MOST_JSON = 2**25
"""The most bytes of JSON; that of a network of 1200 operations has a quarter of a million."""

_NAMED_VALUES: Mapping[str, type] = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}


class NotPackable(Exception):
    """The graph has something for which the format has no words."""


class NotReadable(Exception):
    """The bytes are damaged, of another version, or about another model or input."""


def pack(captured: CapturedGraph, model: nn.Module, inputs: Tensor) -> bytes:
    """Return a graph of `model`, captured for inputs like these, as bytes.

    Raises:
        NotPackable: If the graph serves one batch size only, takes extra inputs, or has operations
            or arguments that the format does not know.
    """
    if captured.batch is not None or captured.extra_inputs:
        raise NotPackable("the graph is bound to a batch size or to extra inputs")
    own = {id(tensor): name for name, tensor in reversed(_tensors(model).items())}
    stored_bytes = 0
    positions: dict[Node, int] = {}
    nodes: list[Any] = []
    for node in captured.graph.nodes:
        if node.op == "output":
            continue
        positions[node] = len(nodes)
        if node is captured.input:
            content: Any = "input"
        elif node.op == "placeholder":
            if node not in captured.constants:
                continue
            tensor = captured.constants[node]
            content = {"model": own[id(tensor)]} if id(tensor) in own else _stored(tensor)
            stored_bytes += 0 if id(tensor) in own else tensor.nbytes
            if stored_bytes > MOST_STORED:
                raise NotPackable("the model makes large tensors that it does not own")
        elif node.op == "call_function":
            keywords = {name: _packed(value, positions) for name, value in node.kwargs.items()}
            content = [_name(node.target), _packed(node.args, positions)["tuple"], keywords]
        else:
            raise NotPackable(f"the graph has a {node.op}")
        nodes.append([node.name, content, _packed_value(node.meta.get("val")), _module(node)])
    description = {
        "input": [list(inputs.shape[1:]), _last(inputs.dtype)],
        "output": positions[captured.output],
        "nodes": nodes,
    }
    text = json.dumps(description, separators=(",", ":")).encode()
    if len(text) > MOST_JSON:
        raise NotPackable("the graph is too large")
    body = zlib.compress(text, 6)
    return MAGIC + sha256(body).digest() + body


def unpack(content: bytes, model: nn.Module, inputs: Tensor) -> CapturedGraph:
    """Return the graph in bytes from `pack`, which reads the tensors of this model.

    Raises:
        NotReadable: If the bytes are damaged, or not about such a model and such inputs.
    """
    digest, body = content[len(MAGIC) : len(MAGIC) + 32], content[len(MAGIC) + 32 :]
    if not content.startswith(MAGIC) or sha256(body).digest() != digest:
        raise NotReadable("it is damaged, or of another version")
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(body, MOST_JSON)
        return _read(json.loads(text), model, inputs)
    except NotReadable:
        raise
    except Exception as error:  # whatever a foreign file may lead to
        raise NotReadable(f"its content is not a graph of this model: {error!r:.100}") from error


def _read(description: Any, model: nn.Module, inputs: Tensor) -> CapturedGraph:
    if description["input"] != [list(inputs.shape[1:]), _last(inputs.dtype)]:
        raise NotReadable("it is about inputs of another form")
    own = _tensors(model)
    names = [name for name, *_ in description["nodes"]]
    if len({*names}) < len(names) or not all(map(_is_name, names)):
        raise NotReadable("its names are not those of operations")
    graph, nodes = Graph(), list[Node]()
    constants: dict[Node, Tensor] = {}
    explained: Node | None = None
    for name, content, value, module in description["nodes"]:
        if isinstance(content, list):
            target, arguments, keywords = cast("list[Any]", content)
            node = graph.create_node(
                "call_function",
                _function(target),
                tuple(_unpacked(part, nodes) for part in arguments),
                {key: _unpacked(part, nodes) for key, part in keywords.items()},
                name,
            )
        else:
            node = graph.create_node("placeholder", name, name=name)
            if content == "input":
                explained = node
            elif "model" in content:
                constants[node] = own[content["model"]]
            else:
                constants[node] = _tensor(content, inputs.device)
        if node.name != name:  # a graph renames what has the name of a builtin, such as input
            node.name = name
        node.meta["val"] = _unpacked_value(value)
        node.meta["nn_module_stack"] = {"": tuple(module)} if module else {}
        nodes.append(node)
    if explained is None:
        raise NotReadable("it has no input")
    return CapturedGraph(graph, explained, nodes[description["output"]], constants, batch=None)


def _is_name(name: Any) -> bool:
    """Return whether this may stand in code, which is made of a graph to run it."""
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters, buffers and other tensors by name."""
    tensors: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    for path, part in model.named_modules():
        plain = {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
        tensors |= {f"{path}.{name}".lstrip("."): value for name, value in plain.items()}
    return tensors


def _name(target: Any) -> str:
    """Return an operation's name in the file."""
    if isinstance(target, OpOverload):
        name = f"{target._schema.name}.{target._overloadname}"
    else:
        name = next((name for name, function in FUNCTIONS.items() if function is target), "")
    if not name or _function(name) is not target:
        raise NotPackable(f"{target} is not an operation of the format")
    return name


def _function(name: str) -> Callable[..., Any]:
    """Return the operation of this name."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.rpartition(".")
    if namespace not in NAMESPACES or f"{namespace}::{base}" in NOT_CALLED:
        raise NotPackable(f"{name} is not an operation of the format")
    found = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    if not isinstance(found, OpOverload) or found._schema.is_mutable:
        raise NotPackable(f"{name} does not only compute")
    return found


def _module(node: Node) -> list[str]:
    """Return the path and the class of the module that calls an operation."""
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return [str(part) for part in list(stack.values())[-1]] if stack else []


def _packed(argument: Any, positions: Mapping[Node, int]) -> Any:
    """Return an argument as JSON."""
    if isinstance(argument, Node):
        return {"node": positions[argument]}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    if isinstance(argument, list | tuple):
        parts = [_packed(part, positions) for part in cast("Sequence[Any]", argument)]
        return {"tuple": parts} if isinstance(argument, tuple) else parts
    if isinstance(argument, slice):
        ends = (argument.start, argument.stop, argument.step)
        return {"slice": [_packed(part, positions) for part in ends]}
    if isinstance(argument, torch.device):
        return {"device": str(argument)}
    for kind, named in _NAMED_VALUES.items():
        if isinstance(argument, named):
            return {kind: _last(argument)}
    raise NotPackable(f"an argument is a {type(argument).__name__}")


def _unpacked(content: Any, nodes: Sequence[Node]) -> Any:
    """Return the argument in JSON."""
    if isinstance(content, list):
        return [_unpacked(part, nodes) for part in cast("list[Any]", content)]
    if not isinstance(content, dict):
        return content
    ((kind, value),) = cast("dict[str, Any]", content).items()
    if kind == "node":
        return nodes[_index(value)]
    if kind == "tuple":
        return tuple(_unpacked(part, nodes) for part in value)
    if kind == "slice":
        return slice(*(_unpacked(part, nodes) for part in value))
    if kind == "device":
        return torch.device(value)
    return _named(kind, value)


def _index(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise NotReadable(f"{value!r:.20} is not the number of an operation")
    return value


def _named(kind: str, name: str) -> Any:
    """Return a value of torch's by its name, such as `torch.float32`."""
    value = getattr(torch, name)
    if not isinstance(value, _NAMED_VALUES[kind]):
        raise NotReadable(f"{name!r:.20} is not a {kind}")
    return value


def _last(value: Any) -> str:
    """Return the name of a value of torch's, `float32`."""
    return str(value).removeprefix("torch.")


def _packed_value(value: Any) -> Any:
    """Return the form of an operation's result as JSON: a dtype and sizes, or a size."""
    if isinstance(value, Tensor):
        return {_last(value.dtype): [_size(side) for side in value.shape]}
    if isinstance(value, list | tuple):
        return [_packed_value(part) for part in cast("Sequence[Any]", value)]
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _size(value)
    return value if isinstance(value, bool | int | float) else None


def _unpacked_value(content: Any) -> Any:
    if isinstance(content, dict):
        ((dtype, shape),) = cast("dict[str, Any]", content).items()
        return torch.empty(shape, dtype=_named("dtype", dtype), device="meta")
    if isinstance(content, list):
        return [_unpacked_value(part) for part in cast("list[Any]", content)]
    return content


def _size(size: Any) -> int | float | bool:
    """Return a size in a batch of `BATCH`."""
    if isinstance(size, int | float | bool):
        return size
    expression = size.node.expr
    value = expression.subs(dict.fromkeys(expression.free_symbols, BATCH))
    if isinstance(size, torch.SymBool):
        return bool(value)
    return float(value) if isinstance(size, torch.SymFloat) else int(value)


def _stored(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor that does not belong to the model, with its content."""
    if tensor.nbytes > MOST_STORED or type(tensor) not in (Tensor, nn.Parameter):
        raise NotPackable("the model makes large or special tensors that it does not own")
    content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return {
        "dtype": _last(tensor.dtype),
        "shape": list(tensor.shape),
        "bytes": base64.b64encode(content).decode(),
        "is_on_cpu": tensor.device.type == "cpu",
    }


def _tensor(content: Mapping[str, Any], device: torch.device) -> Tensor:
    stored = bytearray(base64.b64decode(content["bytes"], validate=True))
    dtype = _named("dtype", content["dtype"])
    if not stored:
        return torch.empty(content["shape"], dtype=dtype)
    tensor = torch.frombuffer(stored, dtype=torch.uint8).view(dtype).reshape(content["shape"])
    return tensor if content["is_on_cpu"] else tensor.to(device)
