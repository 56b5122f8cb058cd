"""A graph without in-place operations.

`torch.export` keeps `relu_`. Running its functionalisation costs as much as the export itself, and
nearly every in-place operation in practice is an activation on a fresh tensor that nobody reads
again: those are renamed here, and the whole pass runs only where one is left.
"""

import warnings

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

# Operations that return a tensor of their own, never their input or a view of it.
_FRESH = frozenset(
    f"aten::{name}"
    for name in (
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("linear", "addmm", "mm", "batch_norm", "add", "sub", "mul", "cat"),
    )
)


def without_inplace(program: ExportedProgram, *, ours: bool) -> ExportedProgram:
    """The same program with every in-place operation replaced by its functional twin.

    A program that is not `ours` to change is copied instead.
    """
    mutating = [node for node in program.graph.nodes if _mutates(node)]
    if not mutating:
        return program
    twins = {node: _twin(node) for node in mutating}
    if ours and all(twins[node] is not None and _unseen(node) for node in mutating):
        for node, twin in twins.items():
            node.target = twin
        return program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions({})


def _mutates(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _twin(node: Node) -> OpOverload | None:
    """`aten.relu.default` for `aten.relu_.default`."""
    assert isinstance(node.target, OpOverload)
    name = node.target._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, node.target._overloadname, None)


def _unseen(node: Node) -> bool:
    """Whether nobody else reads the tensor that the operation writes over, or a view of it."""
    source = node.args[0]
    if not isinstance(source, Node) or not isinstance(source.target, OpOverload):
        return False
    # An in-place operation passes on a tensor that was fresh, if it was unseen itself.
    fresh = source.target._schema.name.removesuffix("_") in _FRESH
    return fresh and list(source.users) == [node]
