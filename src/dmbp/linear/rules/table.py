"""How each operation of a network is frozen at an input: the table that capture looks things up in.

A row names an ATen operation and says what stands for it in the linear network:

| kind     | frozen at x as                                                      | carries a mask |
| -------- | ------------------------------------------------------------------- | -------------- |
| affine   | itself; arguments it is not linear in are held                      | no             |
| gate     | slope ⊙ z + offset, element by element; the offset counts as a bias | yes: a site    |
| smooth   | the tangent, or another line, in the same form                      | if activation  |
| product  | one factor held, the other carries                                  | if it is gated |
| norm     | the deviation held, the mean linear                                 | no             |
| choice   | the winner's index                                                  | no             |
| decision | its value at x: a comparison, a shape, an index, a softmax          | no             |

Activations that a model writes out are made one operation before, which is smooth (`regions.py`).
An operation that is not in the table is refused by name. To add one, write its row in the file of
its kind (`affine.py`, `gates.py`, `smooth.py`, `products.py`, `attention.py`, `norms.py`,
`choices.py`, `decisions.py`); `CONTRIBUTING.md` shows how.

Operations that cannot be frozen, by name and place: what the user is told of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Node

from dmbp.errors import UnsupportedOperation
from dmbp.linear.rules.affine import AFFINE
from dmbp.linear.rules.base import Rule
from dmbp.linear.rules.choices import CHOICES, DECISIONS
from dmbp.linear.rules.gates import GATES
from dmbp.linear.rules.norms import NORMS
from dmbp.linear.rules.products import ATTENTION, PRODUCTS
from dmbp.linear.rules.smooth import SMOOTH

RULES: Mapping[str, Rule] = {
    **AFFINE,
    **GATES,
    **SMOOTH,
    **PRODUCTS,
    **ATTENTION,
    **NORMS,
    **CHOICES,
    **DECISIONS,
}


def operation_name(target: object) -> str:
    """The key of an operation in the table: `aten.add.Tensor`, `getitem`."""
    return str(target) if "." in str(target) else getattr(target, "__name__", str(target))


IN_TRAINING = "put the model into evaluation mode with model.eval(), and export it so"
"""What helps against operations that are there only in training."""

_OF_TRAINING = ("aten._native_batch_norm_legit", "aten.batch_norm", "aten.dropout")
_DROPOUT = "aten.dropout"
_RANDOM = ("aten.rand", "aten.bernoulli", "aten.normal")
_LAST_LAYERS = ("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")


def module_path(node: Node) -> str:
    """Where in the model an operation stands: `layer1.0.relu`; empty at the top."""
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return path.partition("@")[0]  # "@1" marks a module's second call


def constant_output(output: Node) -> UnsupportedOperation:
    """The exception for an output that is a constant once all is frozen: a softmax's, as a rule."""
    node = output
    while operation_name(node.target) not in _LAST_LAYERS and node.all_input_nodes:
        node = node.all_input_nodes[0]
    last = node if operation_name(node.target) in _LAST_LAYERS else output
    return unsupported(last, "held as it is, it leaves an output that does not depend on the input")


def all_unsupported(refused: Sequence[tuple[Node, str]]) -> UnsupportedOperation:
    """The exception for operations that cannot be frozen, each once a place: the first of them."""
    found: dict[tuple[str, str], UnsupportedOperation] = {}
    for node, why in refused:
        found.setdefault((operation_name(node.target), module_path(node)), unsupported(node, why))
    first, *others = found.values()
    return UnsupportedOperation(
        str(first), operation=first.operation, module=first.module, others=tuple(others)
    )


def unsupported(node: Node, reason: str) -> UnsupportedOperation:
    """The exception for an operation that cannot be frozen, naming it and its place."""
    place = module_path(node)
    where = f"at '{place}'" if place else "at the top of the model"
    name = operation_name(node.target)
    return UnsupportedOperation(
        f"{name} {where} cannot be frozen at an input: {reason}. {_hint(name)}",
        operation=name,
        module=place,
    )


def _hint(name: str) -> str:
    """What to do about an operation."""
    if name.startswith(_RANDOM):
        return "It draws at random, so that the model has no one answer: do so in training only."
    if name.startswith(_OF_TRAINING):
        hint = f"It is there in training only: {IN_TRAINING}."
        called = " Where forward() calls it, it takes F.dropout(x, training=self.training)."
        return hint + called if name.startswith(_DROPOUT) else hint
    more = "Supported operations: dmbp.linear.rules.table; CONTRIBUTING.md shows how to add one."
    if name in _LAST_LAYERS:
        last = "If it is the last layer, explain the model without it: the scores before it."
        return f"{last} {more}"
    return more
