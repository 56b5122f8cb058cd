"""A graph of an ONNX file as a module, an operation a submodule that owns its weights."""

from collections.abc import Iterable
from itertools import chain, count
from typing import Any

from torch import Tensor, nn

from dmbp.models.onnx_files.call import Value, as_numbers
from dmbp.models.onnx_files.graph import Graph, Node
from dmbp.models.onnx_files.operations import compute

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LayerNormalization", "GroupNormalization")
_ROLES = {
    **{layer: {1: "weight", 2: "bias"} for layer in _LAYERS},
    "BatchNormalization": {1: "weight", 2: "bias", 3: "mean", 4: "variance"},
}
"""What layers call their constants, by position."""

_READS_NUMBERS = ("Resize", "Upsample", "Clip")
"""Operations whose float constants are settings, no weights."""


class Operation(nn.Module):
    """One node; floats among its constants are parameters, other tensors buffers."""

    def __init__(self, node: Node, constants: dict[str, Value]) -> None:
        super().__init__()
        self.node = node
        self._numbers: dict[str, Value] = {}
        self._tensors: dict[str, str] = {}
        for position, name in enumerate(node.inputs):
            if name in constants:
                self._keep(position, name, constants[name])

    def _keep(self, position: int, name: str, constant: Value) -> None:
        if not isinstance(constant, Tensor) or self.node.operation in _READS_NUMBERS:
            self._numbers[name] = as_numbers(constant)
            return
        role = _ROLES.get(self.node.operation, {}).get(position, f"constant_{position}")
        self._tensors[name] = role
        if isinstance(constant, nn.Parameter):
            self.register_parameter(role, constant)
        else:
            self.register_buffer(role, constant)

    def forward(self, values: dict[str, Value], images: Tensor) -> Any:
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
            self.add_module(name, Operation(node, constants))
        self._last_reads = _last_reads(graph)

    def forward(self, images: Tensor) -> Tensor:
        """The output of the file's network."""
        values: dict[str, Value] = {self._input: images}
        for operation, finished in zip(self.children(), self._last_reads, strict=True):
            values.update(operation(values, images))
            for name in finished:
                values.pop(name, None)
        return values[self._output]


def _owned(constant: Value) -> Value:
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
