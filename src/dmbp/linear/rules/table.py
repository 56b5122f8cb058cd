"""The freezing table: the rule of every supported operation, and the errors for all others.

| kind     | frozen at x as                                                        | a site?       |
| -------- | --------------------------------------------------------------------- | ------------- |
| affine   | itself; arguments in which it is not linear keep their value at x     | no            |
| gate     | slope ⊙ z + offset for every element; the offset counts as a bias     | yes           |
| smooth   | its tangent, or another line, in the same form                        | if activation |
| product  | a product with one factor frozen, linear in the other                 | if gated      |
| norm     | the same with the deviation frozen; the mean stays linear             | no            |
| choice   | picking the elements that win at x                                    | no            |
| decision | its value at x: a comparison, a shape, an index, a softmax            | no            |

Activations that a model writes out, such as `x * torch.sigmoid(x)`, become one smooth operation
before the table is consulted (`capture/composite.py`). `torch.export` decomposes an operation
without a row (`capture/export.py`); if one of its parts still has none, the operation is refused by
name. `rules/__init__.py` says in which file a new row belongs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import Node

from dmbp.errors import UnsupportedOperation, place_in
from dmbp.linear.rules.affine import AFFINE
from dmbp.linear.rules.base import Rule
from dmbp.linear.rules.choices import CHOICES, DECISIONS
from dmbp.linear.rules.gates import GATES
from dmbp.linear.rules.norms import NORMS
from dmbp.linear.rules.products import PRODUCTS
from dmbp.linear.rules.refusals import (
    ADD_RULE,
    COMPLEX,
    CONSTANT,
    NO_STATISTICS,
    Cause,
    cause_of,
)
from dmbp.linear.rules.smooth import SMOOTH

RULES: Mapping[str, Rule] = {
    **AFFINE,
    **GATES,
    **SMOOTH,
    **PRODUCTS,
    **NORMS,
    **CHOICES,
    **DECISIONS,
}


def operation_name(target: object) -> str:
    """Return an operation's key in the table, such as `aten.add.Tensor` or `getitem`."""
    return str(target) if "." in str(target) else getattr(target, "__name__", str(target))


def module_path(node: Node) -> str:
    """Return the path of the module that calls an operation, or "" for the model itself."""
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return path.partition("@")[0]  # "@1" marks a module's second call


_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")

NO_RULE = "it has no rule"


def unsupported_error(node: Node, reason: str) -> UnsupportedOperation:
    """Return the exception for an operation that cannot be frozen, with its name and module."""
    path = module_path(node)
    place = place_in(str(node.meta.get("stack_trace") or ""))
    where = f"at '{path}'" if path else "at the top of the model"
    name = operation_name(node.target)
    cause = _cause(node, reason)
    return UnsupportedOperation(
        f"{name} {where}{f' ({place})' if place else ''} cannot be frozen at an input: "
        f"{cause.reason}; {cause.way_out}",
        operation=name,
        module=path,
        way_out=cause.way_out,
    )


def _cause(node: Node, reason: str) -> Cause:
    """Return why an operation is refused, where `reason` is what its rule says."""
    name = operation_name(node.target)
    if name.startswith("aten.batch_norm") and len(node.args) > 3 and node.args[3] is None:
        return NO_STATISTICS
    cause = cause_of("aten.softmax" if name in _SOFTMAX else name)
    if "complex" in reason:
        return replace(COMPLEX, reason=reason)
    if reason == CONSTANT.reason and cause.way_out == ADD_RULE:
        return CONSTANT
    return cause if reason in (NO_RULE, "it is random") else replace(cause, reason=reason)


def unsupported_errors(refused: Sequence[tuple[Node, str]]) -> UnsupportedOperation:
    """Return one exception for all refused operations: the first, with the rest as `others`.

    An operation that is refused several times in the same module counts once.
    """
    errors: dict[tuple[str, str], UnsupportedOperation] = {}
    for node, reason in refused:
        key = operation_name(node.target), module_path(node)
        errors.setdefault(key, unsupported_error(node, reason))
    first, *others = errors.values()
    return UnsupportedOperation(
        str(first),
        operation=first.operation,
        module=first.module,
        way_out=first.way_out,
        others=tuple(others),
    )


def constant_output_error(output: Node) -> UnsupportedOperation:
    """Return the exception for an output that is constant once frozen, usually by a softmax."""
    node = output
    while operation_name(node.target) not in _SOFTMAX and node.all_input_nodes:
        node = node.all_input_nodes[0]
    last = node if operation_name(node.target) in _SOFTMAX else output
    return unsupported_error(last, CONSTANT.reason)
