"""A program of operations that have rules: others are broken into smaller ones, or refused."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from dmbp.linear.refusal import all_unsupported
from dmbp.linear.rules import RULES, operation_name

NO_RULE = "it has no rule"


def with_known_operations(program: ExportedProgram) -> ExportedProgram:
    """Break operations that have no rule into smaller ones that may have."""
    unknown = _unknown(program)
    if not unknown:
        return program
    decompositions = {
        operation: function
        for operation, function in torch.export.default_decompositions().items()
        if operation_name(operation) not in RULES
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            smaller = program.run_decompositions(decompositions)
        except Exception as error:
            raise all_unsupported([(node, NO_RULE) for node in unknown]) from error
    remaining = _unknown(smaller)
    if remaining:
        # The name the user knows is that of the operation before it was broken up.
        known = {node.name: node for node in program.graph.nodes}
        raise all_unsupported([(_origin(node, known), NO_RULE) for node in remaining])
    return smaller


def _origin(node: Node, known: Mapping[str, Node]) -> Node:
    """The operation that was broken up into this one, among others."""
    sources: Any = node.meta.get("from_node") or ()
    return next((known[source.name] for source in sources if source.name in known), node)


def _unknown(program: ExportedProgram) -> list[Node]:
    """Operations without a rule that depend on the input that is explained.

    What such an operation computes depends on it too, unless it is a decision: of whole numbers or
    truth values nobody can know.
    """
    explained = list(program.graph_signature.user_inputs)[:1]
    active = {n for n in program.graph.nodes if n.op == "placeholder" and n.name in explained}
    unknown: list[Node] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or not active.intersection(node.all_input_nodes):
            continue
        rule = RULES.get(operation_name(node.target))
        if rule is None and not of_shapes(node):
            unknown.append(node)
        if (rule is None or rule.kind != "decision") and _of_numbers(node):
            active.add(node)  # a decision or an index is a constant from here on
    return unknown


def _of_numbers(node: Node) -> bool:
    """Whether a node computes real or complex numbers."""
    value = node.meta.get("val")
    values: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    return any(
        isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex()) for one in values
    )


def of_shapes(node: Node) -> bool:
    """Whether a node computes with sizes, not with tensors."""
    return isinstance(node.meta.get("val"), int | torch.SymInt | torch.SymBool | torch.SymFloat)
