"""An activation that a model writes out, x · sigmoid(1.702 x), as one operation.

Called with the activation and the constants it reads, it runs the operations it stands for. Its
name lists those that are no linear maps: `sigmoid+mul`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.linear.affine import AFFINE
from dmbp.linear.rule import Function, Rule
from dmbp.linear.rules import RULES, operation_name
from dmbp.linear.smooth import Smooth


@dataclass(frozen=True, eq=False)
class Spelled:
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
    return target.rule if isinstance(target, Spelled) else RULES.get(operation_name(target))


def _run(node: Node, values: Mapping[Node, Any]) -> Any:
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return _function(node)(*arguments, **keywords)


def _function(node: Node) -> Function:
    """What stands for a node: a value passes where a model detaches it."""
    row = AFFINE.get(operation_name(node.target))
    assert callable(node.target)
    return row.function if row is not None and row.function is not None else node.target
