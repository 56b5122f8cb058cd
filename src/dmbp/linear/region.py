"""A run of operations, element by element, from one activation: whether it is an activation φ.

It is, where it multiplies or divides values that both depend on its root, or puts a power, an
exponential, a logarithm on top of another bend. What is linear in pieces is none. Nor is a function
that stands alone, z² or exp(z), or one that others are divided by, 1 / √(z + ε): those are parts
of something else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch.fx import Node

from dmbp.linear.elementwise import (
    ACTIVATION,
    DIVIDED,
    KINDS,
    MULTIPLIED,
    PASSED,
    Degree,
    Kind,
    Nature,
    bends,
    nature_of,
)
from dmbp.linear.role import Role
from dmbp.linear.rules import operation_name
from dmbp.linear.smooth import SMOOTH, Smooth


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
