"""Activations that exporters spell out, put together again.

    x · sigmoid(x)                                          SiLU
    x · hardsigmoid(x), x · clip(x + 3, 0, 6) / 6           Hardswish
    x · tanh(softplus(x))                                   Mish
    x · (1 + erf(x / √2)) / 2                               GELU
    x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2            GELU, by tanh

As a product one factor would be frozen; the activation has a tangent. A file does not say which of
the two its author wrote, and activations are what networks are made of.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dmbp.models.onnx_files.call import Value
from dmbp.models.onnx_files.graph import Graph, Node, needed

NEARLY = 1e-4
"""Constants of files are rounded to single precision, some to fewer digits."""


@dataclass(frozen=True)
class Gate:
    """What x is multiplied with in an activation: scale · x · gate(x) = activation(x)."""

    activation: str
    x: str
    scale: float = 1.0
    attributes: Mapping[str, Any] | None = None


class Spelling:
    """A graph, asked about how a value was made."""

    def __init__(self, graph: Graph) -> None:
        self.constants = graph.constants
        self.makers = {name: node for node in graph.nodes for name in node.outputs}
        self.readers = Counter(name for node in graph.nodes for name in node.inputs)
        self.readers[graph.output] += 1

    def made(self, name: str, *operations: str) -> Node | None:
        """The node that made a value, if it is one of these operations."""
        node = self.makers.get(name)
        return node if node is not None and node.operation in operations else None

    def number(self, name: str) -> float | None:
        """A constant of one element."""
        value: Value = self.constants.get(name)
        if hasattr(value, "numel"):
            value = value.flatten().tolist() if value.numel() == 1 else None
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        return float(value) if isinstance(value, int | float) else None

    def scaled(self, name: str) -> tuple[float, list[str]]:
        """A value as a number times factors, through products that nothing else reads."""
        scale, factors = self.opened(name)
        found: list[str] = []
        for factor in factors:
            if factor != name and self.readers[factor] == 1:
                more, inner = self.scaled(factor)
                scale *= more
                found.extend(inner)
            else:
                found.append(factor)
        return scale, found

    def opened(self, name: str) -> tuple[float, list[str]]:
        """The same through one product or quotient."""
        node = self.made(name, "Mul", "Div")
        if node is None:
            return 1.0, [name]
        numbers = [self.number(one) for one in node.inputs]
        if node.operation == "Div":
            divisor = numbers[1]
            return (1 / divisor, [node.inputs[0]]) if divisor else (1.0, [name])
        scale = math.prod(number for number in numbers if number is not None)
        return scale, [
            one for one, number in zip(node.inputs, numbers, strict=True) if number is None
        ]

    def less(self, name: str, number: float) -> str | None:
        """The value v where this one is v + number."""
        node = self.made(name, "Add")
        if node is None:
            return None
        for one, other in (node.inputs, node.inputs[::-1]):
            found = self.number(other)
            if found is not None and abs(found - number) < NEARLY:
                return one
        return None


def with_activations(graph: Graph) -> Graph:
    """The graph with activations in place of products that spell them out."""
    spelling = Spelling(graph)
    nodes = tuple(_put_together(node, spelling) for node in graph.nodes)
    return needed(replace(graph, nodes=nodes))


def _put_together(node: Node, spelling: Spelling) -> Node:
    if node.operation not in ("Mul", "Div"):
        return node
    scale, factors = spelling.scaled(node.outputs[0])
    for gate in _gates(factors, spelling):
        if _near(scale, gate.scale):
            return replace(
                node,
                operation=gate.activation,
                inputs=(gate.x,),
                attributes=gate.attributes or {},
            )
    return node


def _gates(factors: list[str], spelling: Spelling) -> Iterator[Gate]:
    """Gates on one of two factors that are made of the other."""
    if len(factors) != 2:
        return
    for x, factor in (factors, factors[::-1]):
        found = (read(factor, spelling) for read in GATES)
        yield from (gate for gate in found if gate is not None and gate.x == x)


def _sigmoid(name: str, spelling: Spelling) -> Gate | None:
    node = spelling.made(name, "Sigmoid")
    return None if node is None else Gate("Swish", node.inputs[0])


def _hard_sigmoid(name: str, spelling: Spelling) -> Gate | None:
    node = spelling.made(name, "HardSigmoid")
    if node is None or not _near(node.attributes.get("alpha", 0.2), 1 / 6):
        return None
    return Gate("HardSwish", node.inputs[0])


def _clipped(name: str, spelling: Spelling) -> Gate | None:
    node = spelling.made(name, "Clip")
    if node is None:
        return None
    bounds = [node.attributes.get(bound) for bound in ("min", "max")]
    bounds = [spelling.number(one) for one in node.inputs[1:]] or bounds
    x = spelling.less(node.inputs[0], 3.0)
    return Gate("HardSwish", x, 1 / 6) if x is not None and bounds == [0.0, 6.0] else None


def _tanh_of_softplus(name: str, spelling: Spelling) -> Gate | None:
    outer = spelling.made(name, "Tanh")
    inner = None if outer is None else spelling.made(outer.inputs[0], "Softplus")
    return None if inner is None else Gate("Mish", inner.inputs[0])


def _one_and_erf(name: str, spelling: Spelling) -> Gate | None:
    erf = spelling.made(spelling.less(name, 1.0) or "", "Erf")
    if erf is None:
        return None
    scale, factors = spelling.opened(erf.inputs[0])
    is_gelu = len(factors) == 1 and _near(scale, math.sqrt(0.5))
    return Gate("Gelu", factors[0], 0.5) if is_gelu else None


def _one_and_tanh(name: str, spelling: Spelling) -> Gate | None:
    tanh = spelling.made(spelling.less(name, 1.0) or "", "Tanh")
    if tanh is None:
        return None
    scale, factors = spelling.opened(tanh.inputs[0])
    total = spelling.made(factors[0], "Add") if _near(scale, math.sqrt(2 / math.pi)) else None
    for x, cubic in () if total is None else (total.inputs, total.inputs[::-1]):
        if _is_cubic(cubic, x, spelling):
            return Gate("Gelu", x, 0.5, {"approximate": "tanh"})
    return None


def _is_cubic(name: str, x: str, spelling: Spelling) -> bool:
    """Whether a value is 0.044715 x³."""
    scale, factors = spelling.scaled(name)
    powers = [_power(factor, x, spelling) for factor in factors]
    return _near(scale, 0.044715) and sum(powers) == 3


def _power(name: str, x: str, spelling: Spelling) -> float:
    node = spelling.made(name, "Pow")
    if node is not None and node.inputs[0] == x:
        return spelling.number(node.inputs[1]) or math.nan
    return 1.0 if name == x else math.nan


GATES: tuple[Callable[[str, Spelling], Gate | None], ...] = (
    _sigmoid,
    _hard_sigmoid,
    _clipped,
    _tanh_of_softplus,
    _one_and_erf,
    _one_and_tanh,
)


def _near(found: float, expected: float) -> bool:
    return abs(found - expected) < NEARLY * abs(expected)
