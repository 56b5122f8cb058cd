"""Finds activations that a model writes out, and makes one operation of each.

    x * torch.sigmoid(1.702 * x)    x / (1 + x.abs())    x * F.relu6(x + 3) / 6    relu(x) ** 2

A region works element by element on one activation, its root, and on constants; `region.py` says
when it is an activation φ. Squeeze-and-excitation, gated units, attention and norms are no regions:
their factors mix elements or come from two activations.

A region ends at its last bend: a factor or a constant behind it is a linear map of φ. It starts at
the nearest activation, so a SiLU behind a ReLU leaves the ReLU alone, and of a sum x + φ(x) it is
φ alone. What else reads a value inside still finds it: that value is computed on its own, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.fx import Graph, Node

from dmbp.linear.capture import CapturedGraph
from dmbp.linear.elementwise import CURVED, DIVIDED, GATED, MULTIPLIED, PASSED, is_elementwise
from dmbp.linear.known import of_shapes
from dmbp.linear.region import Region, is_function, is_square, kind_of
from dmbp.linear.role import Role
from dmbp.linear.smooth import Smooth
from dmbp.linear.spelled import Spelled

SQUARE = Smooth(Role.PLAIN, is_activation=False)
"""x · x is x²: a function, no activation."""

_LINEAR_IN = {MULTIPLIED: ([0], [1]), DIVIDED: ([0],)}
"""The places of the arguments in which an operation is linear together."""


def with_regions(captured: CapturedGraph) -> CapturedGraph:
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

    def at(self, end: Node) -> Spelled | None:
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


def _spelled(region: Region, rule: Smooth, name: str) -> Spelled:
    return Spelled(region.root, region.nodes, region.constants, rule, name)


def _regions(captured: CapturedGraph) -> dict[Node, Spelled]:
    """By their last operation; from the output backward, so that the widest is found first."""
    search = _Search(_active(captured))
    needed: set[Node] = {captured.output}
    found: dict[Node, Spelled] = {}
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
    captured: CapturedGraph, regions: Mapping[Node, Spelled]
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


def _read(node: Node, regions: Mapping[Node, Spelled]) -> Sequence[Node]:
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
