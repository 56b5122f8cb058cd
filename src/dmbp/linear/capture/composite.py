"""An activation that a model writes out, x · sigmoid(1.702 x), as one operation.

Called with the activation and the constants it reads, it runs the operations it stands for. Its
name lists those that are no linear maps: `sigmoid+mul`.

A run of operations, element by element, from one activation: whether it is an activation φ.

It is, where it multiplies or divides values that both depend on its root, or puts a power, an
exponential, a logarithm on top of another bend. What is linear in pieces is none. Nor is a function
that stands alone, z² or exp(z), or one that others are divided by, 1 / √(z + ε): those are parts
of something else.

Finds activations that a model writes out, and makes one operation of each.

    x * torch.sigmoid(1.702 * x)    x / (1 + x.abs())    x * F.relu6(x + 3) / 6    relu(x) ** 2

A region works element by element on one activation, its root, and on constants; `region.py` says
when it is an activation φ. Squeeze-and-excitation, gated units, attention and norms are no regions:
their factors mix elements or come from two activations.

A region ends at its last bend: a factor or a constant behind it is a linear map of φ. It starts at
the nearest activation, so a SiLU behind a ReLU leaves the ReLU alone, and of a sum x + φ(x) it is
φ alone. What else reads a value inside still finds it: that value is computed on its own, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from dmbp.linear.capture.elementwise import (
    ACTIVATION,
    CURVED,
    DIVIDED,
    GATED,
    KINDS,
    MULTIPLIED,
    PASSED,
    Degree,
    Kind,
    Nature,
    bends,
    is_elementwise,
    nature_of,
)
from dmbp.linear.capture.export import CapturedGraph, of_shapes
from dmbp.linear.rules.affine import AFFINE
from dmbp.linear.rules.base import Function, Role, Rule
from dmbp.linear.rules.smooth import SMOOTH, Smooth
from dmbp.linear.rules.table import RULES, operation_name


@dataclass(frozen=True, eq=False)
class CompositeActivation:
    """Operations from `root` to the last of `nodes`; `rule` says how they are frozen together."""

    root: Node
    nodes: tuple[Node, ...]
    constants: tuple[Node, ...]
    rule: Smooth
    __name__: str

    def __call__(self, activation: Tensor, *constants: Any) -> Tensor:
        """The function of another activation."""
        given = zip(self.constants, constants, strict=True)
        values: dict[Node, Any] = {self.root: activation, **dict(given)}
        for node in self.nodes:
            values[node] = _run(node, values)
        return values[self.nodes[-1]]

    def __str__(self) -> str:
        return self.__name__


def rule_of(target: object) -> Rule | None:
    """The row of an operation, or the rule of an activation that is written out; None if none."""
    return (
        target.rule
        if isinstance(target, CompositeActivation)
        else RULES.get(operation_name(target))
    )


def _run(node: Node, values: Mapping[Node, Any]) -> Any:
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return _function(node)(*arguments, **keywords)


def _function(node: Node) -> Function:
    """What stands for a node: a value passes where a model detaches it."""
    row = AFFINE.get(operation_name(node.target))
    assert callable(node.target)
    return row.function if row is not None and row.function is not None else node.target


@dataclass(frozen=True)
class Region:
    """The operations from `root` to the last of `nodes`."""

    root: Node
    nodes: tuple[Node, ...]

    @property
    def end(self) -> Node:
        """The last operation."""
        return self.nodes[-1]

    @property
    def is_activation(self) -> bool:
        """Whether it is a smooth activation that is written out."""
        nature = self._natures[self.end]
        if nature.degree < Degree.CURVED or nature.role == Role.NORMALISER:
            return False
        # What scales or shifts an activation is a linear map of it; a sum of two values is none.
        if self.end not in self._bent and kind_of(self.end) is not PASSED:
            return False
        on_top = len(self._bent) > 1 and any(map(is_function, self._bent))
        return on_top or any(_is_product(node, self._natures) for node in self._bent)

    @property
    def role(self) -> Role:
        """That of its result; an activation's at least."""
        return max(Role.ACTIVATION, self._natures[self.end].role)

    @property
    def name(self) -> str:
        """The operations that are no linear maps, and the last: `sigmoid+mul`."""
        named = dict.fromkeys([*self._bent, self.end])
        return "+".join(operation_name(node.target).split(".")[1] for node in named)

    @property
    def constants(self) -> tuple[Node, ...]:
        """What it reads beside its root."""
        inside = {self.root, *self.nodes}
        read = [parent for node in self.nodes for parent in node.all_input_nodes]
        return tuple(dict.fromkeys(parent for parent in read if parent not in inside))

    @cached_property
    def _natures(self) -> dict[Node, Nature]:
        natures = {self.root: ACTIVATION}
        for node in self.nodes:
            natures[node] = nature_of(node, natures)
        return natures

    @cached_property
    def _bent(self) -> list[Node]:
        return [node for node in self.nodes if bends(node, self._natures)]


def kind_of(node: Node) -> Kind:
    """The kind of an element-by-element operation."""
    return KINDS[operation_name(node.target)]


def is_square(node: Node) -> bool:
    """Whether a value is multiplied with itself."""
    return kind_of(node) is MULTIPLIED and node.args[0] is node.args[1]


def is_function(node: Node) -> bool:
    """Whether a node is a power, a quotient, an exponential: no activation by itself."""
    rule = SMOOTH.get(operation_name(node.target))
    is_smooth = isinstance(rule, Smooth) and not rule.is_activation
    return is_smooth or kind_of(node) is DIVIDED or is_square(node)


def _is_product(node: Node, natures: Mapping[Node, Nature]) -> bool:
    """Whether two different values that depend on the root meet."""
    met = [given for given in node.args if isinstance(given, Node) and given in natures]
    moving = {given for given in met if natures[given].degree > Degree.CONSTANT}
    return kind_of(node) in (MULTIPLIED, DIVIDED) and len(moving) > 1


SQUARE = Smooth(Role.PLAIN, is_activation=False)
"""x · x is x²: a function, no activation."""

_LINEAR_IN = {MULTIPLIED: ([0], [1]), DIVIDED: ([0],)}
"""The places of the arguments in which an operation is linear together."""


def with_composite_activations(captured: CapturedGraph) -> CapturedGraph:
    """The same graph, with one operation for each activation that is written out."""
    regions = _regions(captured)
    if not regions:
        return captured
    graph, copies = _rewritten(captured, regions)
    return replace(
        captured,
        graph=graph,
        input=copies[captured.input],
        output=copies[captured.output],
        constants={copies[node]: tensor for node, tensor in captured.constants.items()},
        others=tuple(copies[node] for node in captured.others),
    )


class _Search:
    """Looks for regions among `active` nodes, those that depend on the input, in their order."""

    def __init__(self, active: Mapping[Node, int]) -> None:
        self._active = active

    def at(self, end: Node) -> CompositeActivation | None:
        """The activation that a node is the last operation of, if it is."""
        region = nearest = self._nearest(end)
        if nearest is None or self._adds_activations(end):
            return None
        while region is not None:
            if region.is_activation:
                return _spelled(region, Smooth(region.role), region.name)
            region = self._wider(region)
        return _spelled(nearest, SQUARE, "square") if is_square(end) else None

    def _nearest(self, end: Node) -> Region | None:
        """The nearest root of which `end` is a function, element by element."""
        if end not in self._active or not self._fits(end, end) or _is_named(end):
            return None
        inside = [end]
        open_ends = set(self._parents(end))
        while len(open_ends) > 1:
            latest = max(open_ends, key=self._active.__getitem__)
            if not self._fits(latest, end):
                return None
            open_ends.remove(latest)
            open_ends.update(self._parents(latest))
            inside.append(latest)
        (root,) = open_ends
        return Region(root, tuple(reversed(inside))) if _alike(root, end) else None

    def _wider(self, region: Region) -> Region | None:
        """The region with its root inside, where that is one more step that only it reads."""
        root, end = region.root, region.end
        parents = self._parents(root)
        if not self._fits(root, end) or len(parents) != 1 or not _alike(parents[0], end):
            return None
        seen = set(root.users) - set(region.nodes)
        return None if seen else Region(parents[0], (root, *region.nodes))

    def _fits(self, node: Node, end: Node) -> bool:
        """Whether a node may be inside a region that ends there."""
        if not is_elementwise(node) or _shape(node) != _shape(end):
            return False
        alone = self._parents(node) == [node.args[0]]
        return alone or kind_of(node) not in (GATED, CURVED)

    def _adds_activations(self, node: Node) -> bool:
        """Whether a node is a sum with an activation in it, which stays one of its own."""
        return kind_of(node) is PASSED and any(map(self._activates, self._terms(node)))

    def _activates(self, node: Node) -> bool:
        """Whether a node's result is an activation's, by name or written out."""
        if is_elementwise(node) and _is_named(node):
            return True
        spelled = self.at(node)
        return spelled is not None and spelled.rule.is_activation

    def _terms(self, node: Node) -> Iterator[Node]:
        """What a sum is a sum of."""
        for parent in self._parents(node):
            yield from self._terms(parent) if self._scales(parent) else [parent]

    def _scales(self, node: Node) -> bool:
        """Whether a node is a linear map of what it reads."""
        if not is_elementwise(node):
            return False
        read = [place for place, given in enumerate(node.args) if given in self._active]
        return kind_of(node) is PASSED or read in _LINEAR_IN.get(kind_of(node), ())

    def _parents(self, node: Node) -> list[Node]:
        return [parent for parent in node.all_input_nodes if parent in self._active]


def _spelled(region: Region, rule: Smooth, name: str) -> CompositeActivation:
    return CompositeActivation(region.root, region.nodes, region.constants, rule, name)


def _regions(captured: CapturedGraph) -> dict[Node, CompositeActivation]:
    """By their last operation; from the output backward, so that the widest is found first."""
    search = _Search(_active(captured))
    needed: set[Node] = {captured.output}
    found: dict[Node, CompositeActivation] = {}
    for node in reversed(captured.graph.nodes):
        if node.op != "call_function":
            needed.update(node.all_input_nodes)
        elif node in needed:
            spelled = search.at(node)
            if spelled is not None:
                found[node] = spelled
            needed.update(_read(node, found))
    return found


def _rewritten(
    captured: CapturedGraph, regions: Mapping[Node, CompositeActivation]
) -> tuple[Graph, dict[Node, Node]]:
    """A graph of what is still read, and which of its nodes stands for which."""
    needed = {captured.output}
    for node in reversed(captured.graph.nodes):
        if node.op != "call_function" or node in needed:
            needed.update({node, *_read(node, regions)})
    graph, copies = Graph(), dict[Node, Node]()
    for node in captured.graph.nodes:
        if node in regions:
            given = tuple(copies[read] for read in _read(node, regions))
            copies[node] = graph.create_node("call_function", regions[node], given, name=node.name)
            copies[node].meta = node.meta
        elif node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


def _read(node: Node, regions: Mapping[Node, CompositeActivation]) -> Sequence[Node]:
    spelled = regions.get(node)
    return node.all_input_nodes if spelled is None else (spelled.root, *spelled.constants)


def _active(captured: CapturedGraph) -> dict[Node, int]:
    """Tensors that depend on the input, and their places in the graph."""
    active = {captured.input: 0}
    for place, node in enumerate(captured.graph.nodes, start=1):
        if not of_shapes(node) and any(parent in active for parent in node.all_input_nodes):
            active[node] = place
    return active


def _is_named(node: Node) -> bool:
    """Whether a node is an activation by itself."""
    return kind_of(node) is GATED or (kind_of(node) is CURVED and not is_function(node))


def _alike(root: Node, end: Node) -> bool:
    """Whether two values have one shape and precision."""
    one, other = root.meta.get("val"), end.meta.get("val")
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    return one.dtype == other.dtype and _shape(root) == _shape(end)


def _shape(node: Node) -> tuple[str, ...] | None:
    """A shape, in which sizes may be symbols, to be compared; None of what is no tensor."""
    value = node.meta.get("val")
    return tuple(str(size) for size in value.shape) if isinstance(value, Tensor) else None
