"""Turns a TorchScript module into a plain module with the same tensors, names and results.

`torch.export` cannot look into TorchScript. A scripted or traced module holds its program, though,
as one graph for each method of each of its modules. `TorchScriptModule` runs these graphs with
PyTorch's ordinary operations. It has the same submodules and shares their parameters and buffers,
so it is captured like the module that the program was made from:

    plain = without_torchscript(torch.jit.load("net.pt"))
    torch.export.export(plain, (images,))

Conditions and loops run as Python, so those that depend on sizes and settings are resolved when the
module is exported. An operation that is not known is refused where it would run.
"""

import copy
import re
import warnings
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.errors import CaptureError, place_in
from dmbp.linear.model.torchscript.operations import operate

Values = dict[str, Any]
"""The values of a running program, by their names in its graph."""

_CALL = "dmbp::call_method"
"""Replaces prim::CallMethod, so that torch inlines functions only and keeps modules apart."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "TensorType": (Tensor,),
    "ListType": (list,),
    "TupleType": (tuple,),
    "DictType": (dict,),
    "IntType": (int, torch.SymInt),
    "FloatType": (float, torch.SymFloat),
    "BoolType": (bool, torch.SymBool),
    "StringType": (str,),
    "NoneType": (type(None),),
}


def without_torchscript(module: nn.Module) -> nn.Module:
    """Return a module in which plain modules replace those of TorchScript.

    The module itself is returned if it has none. Otherwise it is not modified, and the tensors are
    shared.
    """
    if isinstance(module, torch.jit.ScriptModule):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            return _plain_module(module)
    children = dict(module.named_children())
    plain = {name: without_torchscript(child) for name, child in children.items()}
    if all(plain[name] is children[name] for name in plain):
        return module
    replaced = copy.copy(module)
    replaced._modules = {**module._modules, **plain}
    return replaced


def _plain_module(script: torch.jit.ScriptModule) -> "TorchScriptModule":
    """Return a TorchScript module as a plain one, of a class with the name of the original class.

    Sites are named after their modules if these are PyTorch's own activations.
    """
    content: Any = script._c
    parts = str(content._type().annotation_str).split(".")
    original = [part for part in parts if not part.startswith(("__torch__", "___torch_mangle"))]
    names = {"__module__": ".".join(original[:-1]), "__doc__": TorchScriptModule.__doc__}
    return type(original[-1], (TorchScriptModule,), names)(script)


class TorchScriptModule(nn.Module):
    """One module of a TorchScript program; its submodules are such modules, too."""

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        super().__init__()
        parts: Any = script  # its dictionaries are views of TorchScript's own
        for name, tensor in parts._parameters.items():
            is_parameter = isinstance(tensor, nn.Parameter)
            parameter = tensor if is_parameter else nn.Parameter(tensor, tensor.requires_grad)
            self.register_parameter(name, parameter)
        for name, buffer in parts._buffers.items():
            self.register_buffer(name, buffer)
        for name, child in parts._modules.items():
            self.add_module(name, _plain_module(child))
        self.training = bool(getattr(script, "training", False))
        self.plain_values: dict[str, Any] = {}
        content: Any = script._c
        self._program = {name: _compile(self, content, name) for name in content._method_names()}

    def forward(self, *arguments: Any, method: str = "forward") -> Any:
        """Run a method of the program; a module that was called twice has two once it is traced."""
        if method not in self._program:
            raise CaptureError(f"the TorchScript program calls {method}(), which it does not have")
        return self._program[method].run(self, arguments)

    def value(self, name: str) -> Any:
        """Return an attribute of the TorchScript module."""
        return self.plain_values[name] if name in self.plain_values else getattr(self, name)

    def set_value(self, name: str, value: Any) -> None:
        """Replace an attribute, as a program that keeps a state does.

        Raises:
            CaptureError: If it is a tensor that the program reads, too.
        """
        is_read = name in (*self.plain_values, *self._parameters, *self._buffers)
        if is_read and isinstance(value, Tensor):
            raise CaptureError(
                f"forward() replaces the tensor {name!r} in every call, so the model's output "
                "depends on the calls before it; explain a model that takes the tensor as an input"
            )
        self.plain_values[name] = value

    def declare(self, name: str, value: Any) -> None:
        """Make an attribute available that is not a parameter, a buffer or a submodule."""
        if name in (*self._parameters, *self._buffers, *self._modules, "training"):
            return
        if isinstance(value, Tensor):
            self.register_buffer(name, value, persistent=False)
        else:
            self.plain_values[name] = value


@dataclass(frozen=True)
class _Instruction:
    """Computes the values called `outputs` from those called `inputs`."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    place: str

    def run(self, values: Values) -> None:
        try:
            result = self.function(*[values[name] for name in self.inputs])
        except Exception as error:
            if self.place and not getattr(error, "__notes__", None):
                error.add_note(self.place)
            raise
        if len(self.outputs) == 1:
            values[self.outputs[0]] = result
        elif self.outputs:
            values.update(zip(self.outputs, result, strict=True))


@dataclass(frozen=True)
class _Block:
    """A sequence of instructions with its own inputs and outputs."""

    inputs: tuple[str, ...]
    instructions: "Sequence[_Instruction | _If | _Loop]"
    outputs: tuple[str, ...]

    def run(self, values: Values, arguments: Sequence[Any]) -> list[Any]:
        values.update(zip(self.inputs, arguments, strict=True))
        for instruction in self.instructions:
            instruction.run(values)
        return [values[name] for name in self.outputs]


@dataclass(frozen=True)
class _If:
    """Runs the first of two blocks if a condition holds, else the second."""

    condition: str
    blocks: Sequence[_Block]
    outputs: tuple[str, ...]

    def run(self, values: Values) -> None:
        chosen = self.blocks[0 if values[self.condition] else 1]
        values.update(zip(self.outputs, chosen.run(values, ()), strict=True))


@dataclass(frozen=True)
class _Loop:
    """Runs a block at most `inputs[0]` times, while its first output is true."""

    inputs: tuple[str, ...]
    block: _Block
    outputs: tuple[str, ...]

    def run(self, values: Values) -> None:
        most, condition, *carried = (values[name] for name in self.inputs)
        step = 0
        while condition and step < most:
            condition, *carried = self.block.run(values, (step, *carried))
            step += 1
        values.update(zip(self.outputs, carried, strict=True))


@dataclass(frozen=True)
class _Method:
    """A method of one module; `defaults` are those of its last arguments."""

    name: str
    body: _Block
    defaults: Sequence[Any]

    def run(self, module: TorchScriptModule, arguments: Sequence[Any]) -> Any:
        expected = len(self.body.inputs) - 1
        missing = expected - len(arguments)
        if not 0 <= missing <= len(self.defaults):
            raise TypeError(f"{self.name}() takes {expected} inputs, not {len(arguments)}")
        defaults = self.defaults[len(self.defaults) - missing :]
        (result,) = self.body.run({}, (module, *arguments, *defaults))
        return result


def _compile(module: TorchScriptModule, content: Any, name: str) -> _Method:
    method = content._get_method(name)
    graph = method.graph.copy()
    _keep_calls(graph)
    torch._C._jit_pass_inline(graph)
    body = _Compiler(module, content, self_name=_names(graph.inputs())[0]).block(graph)
    defaults = [a.default_value for a in method.schema.arguments if a.has_default_value()]
    return _Method(name, body, defaults)


def _keep_calls(graph: Any) -> None:
    """Give calls of methods another name, under which torch does not inline them."""
    for call in graph.findAllNodes("prim::CallMethod"):
        kept = graph.create(_CALL, list(call.inputs()), call.outputsSize())
        kept.s_("name", call.s("name"))
        kept.copyMetadata(call)  # its place in the source
        kept.insertBefore(call)
        for old, new in zip(call.outputs(), kept.outputs(), strict=True):
            new.setType(old.type())
        call.replaceAllUsesWith(kept)
        call.destroy()


class _Compiler:
    """Turns the nodes of a method's graph into instructions."""

    def __init__(self, module: TorchScriptModule, content: Any, *, self_name: str) -> None:
        self.module = module
        self.self_name = self_name
        self.owners: dict[str, tuple[TorchScriptModule, Any]] = {self_name: (module, content)}
        self.compilers: Mapping[str, Callable[[Any], Callable[..., Any]]] = {
            "prim::GetAttr": self._get_attribute,
            "prim::SetAttr": lambda node: partial(_set_attribute, node.s("name")),
            "prim::CreateObject": _create_object,
            "prim::Enter": lambda _: lambda context: context.__enter__(),
            "prim::Exit": lambda _: lambda context: context.__exit__(None, None, None),
            "prim::TupleConstruct": _tuple,
            "prim::ListUnpack": lambda _: list,
            "prim::TupleUnpack": lambda _: list,
            "prim::isinstance": _is_instance,
            _CALL: lambda node: partial(_call_method, node.s("name")),
        }

    def block(self, block: Any) -> _Block:
        """Compile a graph, or a block of a condition or loop."""
        instructions = [self._instruction(node) for node in block.nodes()]
        return _Block(_names(block.inputs()), instructions, _names(block.outputs()))

    def _instruction(self, node: Any) -> _Instruction | _If | _Loop:
        inputs, outputs = _names(node.inputs()), _names(node.outputs())
        blocks = [self.block(block) for block in node.blocks()]
        if node.kind() == "prim::If":
            return _If(inputs[0], blocks, outputs)
        if node.kind() == "prim::Loop":
            return _Loop(inputs, blocks[0], outputs)
        if node.kind() == "prim::Constant":
            return self._constant(node, outputs)
        function = self.compilers.get(node.kind(), _operation)(node)
        return _Instruction(function, inputs, outputs, _place(node))

    def _constant(self, node: Any, outputs: tuple[str, ...]) -> _Instruction:
        value = None if node.mustBeNone() else node.output().toIValue()
        if isinstance(value, Tensor) and not value.dim() and not value.is_floating_point():
            value = value.item()  # a traced program computes sizes with such tensors
        if not isinstance(value, Tensor):
            return _Instruction(lambda: value, (), outputs, "")
        name = f"constant_{len(self.module._buffers)}"  # a buffer moves with the module
        self.module.declare(name, value)
        return _Instruction(partial(_attribute, name), (self.self_name,), outputs, "")

    def _get_attribute(self, node: Any) -> Callable[..., Any]:
        name, owner = node.s("name"), self.owners.get(node.input().debugName())
        if owner is not None:
            module, content = owner
            value = content.getattr(name)
            if name in module._modules:
                self.owners[node.output().debugName()] = module._modules[name], value  # pyright: ignore[reportArgumentType]
            else:
                module.declare(name, value)
        return partial(_attribute, name)


def _attribute(name: str, owner: Any) -> Any:
    return owner.value(name) if isinstance(owner, TorchScriptModule) else getattr(owner, name)


def _set_attribute(name: str, owner: Any, value: Any) -> None:
    if not isinstance(owner, torch.no_grad):  # __init__() of torch.no_grad, inlined by freezing
        _check_module(owner, f"sets {name!r} of")
        owner.set_value(name, value)


def _call_method(name: str, owner: Any, *arguments: Any) -> Any:
    if isinstance(owner, torch.no_grad) and name == "__init__":
        return None
    _check_module(owner, f"calls {name}() of")
    run: Any = owner  # calling it, not its forward(), tells torch.export in which module this is
    return run(*arguments) if name == "forward" else run(*arguments, method=name)


def _check_module(owner: Any, action: str) -> None:
    if not isinstance(owner, TorchScriptModule):
        raise CaptureError(
            f"the TorchScript program {action} an object of its own class, which torch.export "
            "cannot follow; explain the nn.Module that the program was made from"
        )


def _create_object(node: Any) -> Callable[..., Any]:
    kind = node.output().type().annotation_str
    if kind.endswith(".no_grad"):
        return torch.no_grad
    return partial(_refuse, f"makes an object of its own class {kind.rpartition('.')[2]!r}")


def _tuple(node: Any) -> Callable[..., Any]:
    kind = node.output().type().str()
    fields = re.findall(r"[(,] ?(\w+) : ", kind) if kind.startswith("NamedTuple(") else []
    if not fields:
        return lambda *items: items
    return namedtuple("Outputs", fields)  # pyright: ignore[reportUntypedNamedTuple]


def _is_instance(node: Any) -> Callable[..., Any]:
    kinds = [kind.kind() for kind in node.tys("types")]
    if not all(kind in _TYPES for kind in kinds):
        return partial(_refuse, f"asks for the type {kinds}")
    classes = tuple(each for kind in kinds for each in _TYPES[kind])
    return lambda value: isinstance(value, classes)


def _operation(node: Any) -> Callable[..., Any]:
    kind, schema = node.kind(), node.schema()
    if schema == "(no schema)":
        return partial(operate, kind, "", ())
    parsed = torch._C.parse_schema(schema)
    keywords = tuple(argument.name for argument in parsed.arguments if argument.kwarg_only)
    return partial(operate, kind, parsed.overload_name, keywords)


def _refuse(action: str, *_: Any) -> None:
    raise CaptureError(
        f"the TorchScript program {action}, which torch.export cannot follow; explain the "
        "nn.Module that the program was made from"
    )


def _names(values: Any) -> tuple[str, ...]:
    return tuple(value.debugName() for value in values)


_SOURCE = re.compile(r'File "[^"]+", line \d+')


def _place(node: Any) -> str:
    """Return the place of a node in the source, unless that is inside of PyTorch."""
    found = _SOURCE.search(node.sourceRange())
    return found[0] if found is not None and place_in(found[0]) else ""
