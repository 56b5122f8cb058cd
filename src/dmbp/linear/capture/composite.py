"""Composite activations: activations that a model writes out become one operation each.

    x * torch.sigmoid(1.702 * x)    x / (1 + x.abs())    x * F.relu6(x + 3) / 6    relu(x) ** 2

`with_composite_activations` rewrites a captured graph. It looks for *regions*: connected
elementwise operations that compute one result from one activation, the root, and constants.

A region is an activation φ if it multiplies or divides two values that both depend on the root, or
if it applies a power, an exponential or a logarithm to another nonlinear function. A piecewise
linear region is not an activation. Neither is a single function such as z² or exp(z), nor a size
that other values are divided by, 1 / √(z + ε): those are parts of something else. The factors in
squeeze-and-excitation, gated units, attention and norms mix elements or come from two activations,
so these are not regions.

A constant factor or term after φ is a linear map of φ and not part of the region. A region starts
at the nearest activation: a SiLU after a ReLU does not include the ReLU, and in a sum x + φ(x) the
region is φ alone. A value inside a region that is also read outside is computed twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from dmbp.linear.capture.elementwise import (
    CURVE,
    GATE,
    LINEAR,
    PRODUCT,
    QUOTIENT,
    ROOT,
    Degree,
    Dependence,
    dependence_of,
    elementwise_kind,
    is_elementwise,
    is_nonlinear,
)
from dmbp.linear.capture.export import CapturedGraph, computes_sizes
from dmbp.linear.rules.affine import AFFINE
from dmbp.linear.rules.base import Function, Role, Rule
from dmbp.linear.rules.smooth import SMOOTH, Smooth
from dmbp.linear.rules.table import RULES, operation_name

SQUARE = Smooth(Role.PLAIN, is_activation=False)
"""The rule for x · x, which is x²: a function, but not an activation."""

_LINEAR_IN = {PRODUCT: ([0], [1]), QUOTIENT: ([0],)}
"""For each kind, the active arguments with which the operation is linear, by position."""


@dataclass(frozen=True, eq=False)
class CompositeActivation:
    """The operations from `root` to the last of `nodes`, as one operation frozen by `rule`.

    It is called with the activation and the constants that the operations read. Its name lists the
    nonlinear operations: `sigmoid+mul`.
    """

    root: Node
    nodes: tuple[Node, ...]
    constants: tuple[Node, ...]
    rule: Smooth
    __name__: str

    def __call__(self, activation: Tensor, *constants: Any) -> Tensor:
        """Run the operations on another activation."""
        values: dict[Node, Any] = dict(zip(self.constants, constants, strict=True))
        values[self.root] = activation
        for node in self.nodes:
            values[node] = _run(node, values)
        return values[self.nodes[-1]]

    def __str__(self) -> str:
        return self.__name__


def rule_for(target: object) -> Rule | None:
    """Return the rule of an operation or a composite activation, or None if it has none."""
    if isinstance(target, CompositeActivation):
        return target.rule
    return RULES.get(operation_name(target))


def with_composite_activations(captured: CapturedGraph) -> CapturedGraph:
    """Return the same graph with one operation for each activation that is written out."""
    composites = _find_composites(captured)
    if not composites:
        return captured
    graph, copies = _rewrite(captured, composites)
    return replace(
        captured,
        graph=graph,
        input=copies[captured.input],
        output=copies[captured.output],
        constants={copies[node]: tensor for node, tensor in captured.constants.items()},
        extra_inputs=tuple(copies[node] for node in captured.extra_inputs),
    )


def _find_composites(captured: CapturedGraph) -> dict[Node, CompositeActivation]:
    """Return composites by their last node; searching backwards finds the largest first."""
    search = _RegionSearch(_active_nodes(captured))
    needed: set[Node] = {captured.output}
    composites: dict[Node, CompositeActivation] = {}
    for node in reversed(captured.graph.nodes):
        if node.op != "call_function":
            needed.update(node.all_input_nodes)
        elif node in needed:
            composite = search.composite_ending_at(node)
            if composite is not None:
                composites[node] = composite
            needed.update(_inputs(node, composites))
    return composites


def _rewrite(
    captured: CapturedGraph, composites: Mapping[Node, CompositeActivation]
) -> tuple[Graph, dict[Node, Node]]:
    """Return a graph with the composites, and its nodes by the original nodes they stand for."""
    needed = {captured.output}
    for node in reversed(captured.graph.nodes):
        if node.op != "call_function" or node in needed:
            needed.update({node, *_inputs(node, composites)})
    graph, copies = Graph(), dict[Node, Node]()
    for node in captured.graph.nodes:
        if node in composites:
            inputs = tuple(copies[parent] for parent in _inputs(node, composites))
            target = composites[node]
            copies[node] = graph.create_node("call_function", target, inputs, name=node.name)
            copies[node].meta = node.meta
        elif node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


def _inputs(node: Node, composites: Mapping[Node, CompositeActivation]) -> Sequence[Node]:
    composite = composites.get(node)
    return node.all_input_nodes if composite is None else (composite.root, *composite.constants)


def _active_nodes(captured: CapturedGraph) -> dict[Node, int]:
    """Return the tensors that depend on the input, with their positions in the graph."""
    active = {captured.input: 0}
    for position, node in enumerate(captured.graph.nodes, start=1):
        if not computes_sizes(node) and any(parent in active for parent in node.all_input_nodes):
            active[node] = position
    return active


@dataclass(frozen=True)
class ActivationRegion:
    """The elementwise operations from `root` to the last of `nodes`."""

    root: Node
    nodes: tuple[Node, ...]

    @property
    def end(self) -> Node:
        """The last operation."""
        return self.nodes[-1]

    @property
    def is_activation(self) -> bool:
        """Whether the region is a smooth activation that is written out."""
        result = self._dependences[self.end]
        if result.degree < Degree.CURVED or result.role == Role.NORMALISER:
            return False
        # A product with a constant, or a quotient by one, is a linear map after the region. A sum
        # may end a region: `composite_ending_at` has excluded sums that contain an activation.
        if self.end not in self._nonlinear and elementwise_kind(self.end) is not LINEAR:
            return False
        is_nested = len(self._nonlinear) > 1 and any(map(_is_plain_function, self._nonlinear))
        return is_nested or any(_is_product(node, self._dependences) for node in self._nonlinear)

    @property
    def role(self) -> Role:
        """The role of the result, at least an activation's."""
        return max(Role.ACTIVATION, self._dependences[self.end].role)

    @property
    def name(self) -> str:
        """The names of the nonlinear operations and the last: `sigmoid+mul`."""
        named = dict.fromkeys([*self._nonlinear, self.end])
        return "+".join(operation_name(node.target).split(".")[1] for node in named)

    @property
    def constants(self) -> tuple[Node, ...]:
        """The nodes that the region reads besides its root."""
        inside = {self.root, *self.nodes}
        read = [parent for node in self.nodes for parent in node.all_input_nodes]
        return tuple(dict.fromkeys(parent for parent in read if parent not in inside))

    @cached_property
    def _dependences(self) -> dict[Node, Dependence]:
        dependences = {self.root: ROOT}
        for node in self.nodes:
            dependences[node] = dependence_of(node, dependences)
        return dependences

    @cached_property
    def _nonlinear(self) -> list[Node]:
        return [node for node in self.nodes if is_nonlinear(node, self._dependences)]


class _RegionSearch:
    """Looks for regions among `active` nodes, those that depend on the input, with positions."""

    def __init__(self, active: Mapping[Node, int]) -> None:
        self._active = active

    def composite_ending_at(self, end: Node) -> CompositeActivation | None:
        """Return the composite activation whose last operation is `end`, if there is one."""
        region = smallest = self._smallest_region(end)
        if smallest is None or self._adds_activations(end):
            return None
        while region is not None:
            if region.is_activation:
                return _composite(region, Smooth(region.role), region.name)
            region = self._extended_back(region)
        return _composite(smallest, SQUARE, "square") if _is_square(end) else None

    def _smallest_region(self, end: Node) -> ActivationRegion | None:
        """Return the region from the nearest node of which `end` is an elementwise function."""
        if end not in self._active or not self._may_be_inside(end, end):
            return None
        if _is_named_activation(end):
            return None
        inside = [end]
        frontier = set(self._parents(end))
        while len(frontier) > 1:
            latest = max(frontier, key=self._active.__getitem__)
            if not self._may_be_inside(latest, end):
                return None
            frontier.remove(latest)
            frontier.update(self._parents(latest))
            inside.append(latest)
        (root,) = frontier
        return (
            ActivationRegion(root, tuple(reversed(inside)))
            if _same_shape_and_dtype(root, end)
            else None
        )

    def _extended_back(self, region: ActivationRegion) -> ActivationRegion | None:
        """Return the region with its root inside, if the root has one input and no other reader."""
        root, end = region.root, region.end
        parents = self._parents(root)
        if not self._may_be_inside(root, end) or len(parents) != 1:
            return None
        if not _same_shape_and_dtype(parents[0], end):
            return None
        other_readers = set(root.users) - set(region.nodes)
        return None if other_readers else ActivationRegion(parents[0], (root, *region.nodes))

    def _may_be_inside(self, node: Node, end: Node) -> bool:
        """Return whether a node may be inside a region that ends at `end`."""
        if not is_elementwise(node) or _shape(node) != _shape(end):
            return False
        has_one_active_input = self._parents(node) == [node.args[0]]
        return has_one_active_input or elementwise_kind(node) not in (GATE, CURVE)

    def _adds_activations(self, node: Node) -> bool:
        """Return whether a node is a sum with an activation as a term; the region is that term."""
        is_sum = elementwise_kind(node) is LINEAR
        return is_sum and any(map(self._is_activation, self._terms(node)))

    def _is_activation(self, node: Node) -> bool:
        """Return whether a node is the result of an activation, named or written out."""
        if is_elementwise(node) and _is_named_activation(node):
            return True
        composite = self.composite_ending_at(node)
        return composite is not None and composite.rule.is_activation

    def _terms(self, node: Node) -> Iterator[Node]:
        """Yield the terms of a sum, without the linear maps around them."""
        for parent in self._parents(node):
            yield from self._terms(parent) if self._is_linear(parent) else [parent]

    def _is_linear(self, node: Node) -> bool:
        """Return whether a node is a linear map of what it reads."""
        if not is_elementwise(node):
            return False
        read = [k for k, argument in enumerate(node.args) if argument in self._active]
        kind = elementwise_kind(node)
        return kind is LINEAR or read in _LINEAR_IN.get(kind, ())

    def _parents(self, node: Node) -> list[Node]:
        return [parent for parent in node.all_input_nodes if parent in self._active]


def _composite(region: ActivationRegion, rule: Smooth, name: str) -> CompositeActivation:
    return CompositeActivation(region.root, region.nodes, region.constants, rule, name)


def _run(node: Node, values: Mapping[Node, Any]) -> Any:
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return _function(node)(*arguments, **keywords)


def _function(node: Node) -> Function:
    """Return a node's function, or its replacement in the table: the identity for detach."""
    row = AFFINE.get(operation_name(node.target))
    assert callable(node.target)
    return row.replacement if row is not None and row.replacement is not None else node.target


def _is_named_activation(node: Node) -> bool:
    """Return whether an elementwise node is an activation by itself."""
    kind = elementwise_kind(node)
    return kind is GATE or (kind is CURVE and not _is_plain_function(node))


def _is_plain_function(node: Node) -> bool:
    """Return whether a node is a power, a quotient or an exponential: no activation by itself."""
    rule = SMOOTH.get(operation_name(node.target))
    is_smooth = isinstance(rule, Smooth) and not rule.is_activation
    return is_smooth or elementwise_kind(node) is QUOTIENT or _is_square(node)


def _is_square(node: Node) -> bool:
    """Return whether a node multiplies a value by itself."""
    return elementwise_kind(node) is PRODUCT and node.args[0] is node.args[1]


def _is_product(node: Node, known: Mapping[Node, Dependence]) -> bool:
    """Return whether a node multiplies or divides two different values that depend on the root."""
    read = [value for value in node.args if isinstance(value, Node) and value in known]
    varying = {value for value in read if known[value].degree > Degree.CONSTANT}
    return elementwise_kind(node) in (PRODUCT, QUOTIENT) and len(varying) > 1


def _same_shape_and_dtype(root: Node, end: Node) -> bool:
    root_value, end_value = root.meta.get("val"), end.meta.get("val")
    if not isinstance(root_value, Tensor) or not isinstance(end_value, Tensor):
        return False
    return root_value.dtype == end_value.dtype and _shape(root) == _shape(end)


def _shape(node: Node) -> tuple[str, ...] | None:
    """Return a shape as text, since sizes may be symbols; None if the value is not a tensor."""
    value = node.meta.get("val")
    return tuple(str(size) for size in value.shape) if isinstance(value, Tensor) else None
