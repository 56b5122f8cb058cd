"""What the attention layers of a captured graph compute: their probabilities and their outputs.

    probabilities = softmax(q kᵀ · scale + mask)            output = probabilities · v

The graph runs as it was captured, with its operations in their own form, so that gradients are the
model's. A fused `scaled_dot_product_attention` computes the same in two steps here, so that its
probabilities can be read. Attention that a model writes out is found in the graph: a softmax, of
which nothing but the shape changes before it is multiplied with values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from dmbp.errors import InputError
from dmbp.linear.capture.composite import rule_for
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.positions import REARRANGEMENTS
from dmbp.linear.rules.affine import Affine
from dmbp.linear.rules.base import OperationCall
from dmbp.linear.rules.products import VALUES, Attention
from dmbp.linear.rules.table import module_path, operation_name

FUSED = "aten.scaled_dot_product_attention.default"
SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
PRODUCTS = ("matmul", "bmm")
UNCHANGED = REARRANGEMENTS | {"clone", "contiguous", "dropout", "alias", "_to_copy", "to", "detach"}
"""Operations between a softmax and the product that leave its numbers as they are."""


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer at a batch of inputs.

    Attributes:
        name: The module that computes it, or else the operation.
        values: The name and the shape of the step that computes the values, (…, keys, features).
        probabilities: How much each query attends to each key, (…, queries, keys).
        output: The mixed values, (…, queries, features).
    """

    name: str
    values: tuple[str, tuple[int, ...]]
    probabilities: Tensor
    output: Tensor


@dataclass(frozen=True)
class AttentionPass:
    """The outputs of a captured graph, (rows, classes), and its attention layers in order."""

    outputs: Tensor
    layers: tuple[AttentionLayer, ...]


@torch.enable_grad()
def run_attention(captured: CapturedGraph, inputs: Tensor) -> AttentionPass:
    """Run a graph so that gradients with respect to its attention layers can be taken.

    Args:
        captured: The graph, with its extra inputs as constants.
        inputs: The inputs, (rows, …).

    Raises:
        InputError: If a softmax over activations is not followed by a product with values.
    """
    pairs = _written_out(captured)
    kept = {softmax for softmax, _ in pairs.values()}
    values: dict[Node, Any] = {node: tensor.detach() for node, tensor in captured.constants.items()}
    values[captured.input] = inputs.detach().requires_grad_()
    layers: list[AttentionLayer] = []
    last_reader = {parent: node for node in captured.graph.nodes for parent in node.all_input_nodes}
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        if operation_name(node.target) == FUSED:
            layer = _fused(node, arguments, keywords)
            values[node] = layer.output
            layers.append(layer)
        else:
            assert callable(node.target)
            rule = rule_for(node.target)
            replacement = rule.replacement if isinstance(rule, Affine) else None
            values[node] = (replacement or node.target)(*arguments, **keywords)
        if node in pairs:
            softmax, read = pairs[node]
            form = read.name, tuple(arguments[1].shape)
            layers.append(AttentionLayer(_name(node), form, values[softmax], values[node]))
        for parent in node.all_input_nodes:
            if last_reader[parent] is node and parent not in kept:
                del values[parent]
    return AttentionPass(values[captured.output].flatten(1), tuple(layers))


def _fused(node: Node, arguments: Any, keywords: Any) -> AttentionLayer:
    """Compute a fused attention in two steps."""
    assert callable(node.target)
    call = OperationCall(node.target, arguments, keywords, active=frozenset({VALUES}))
    frozen = Attention().with_probabilities(call)
    output = frozen(*arguments)
    form = cast("Node", node.args[VALUES]).name, tuple(arguments[VALUES].shape)
    return AttentionLayer(_name(node), form, frozen.probabilities, output)


def _name(node: Node) -> str:
    return module_path(node) or node.name


def _written_out(captured: CapturedGraph) -> dict[Node, tuple[Node, Node]]:
    """Return the softmax and the values of each product that is an attention's last step."""
    active = {captured.input}
    pairs: dict[Node, tuple[Node, Node]] = {}
    softmaxes: list[Node] = []
    for node in captured.graph.nodes:
        if node.op != "call_function" or not active.intersection(node.all_input_nodes):
            continue
        active.add(node)
        if _operation(node) in SOFTMAX and node is not captured.output:
            softmaxes.append(node)
        if _operation(node) in PRODUCTS:
            source = _source(node.args[0])
            if source in softmaxes:
                pairs[node] = source, cast("Node", node.args[1])
    found = {softmax for softmax, _ in pairs.values()}
    for softmax in softmaxes:
        if softmax not in found:
            raise InputError(
                f"the softmax at '{_name(softmax)}' is changed before it weighs values, so it is "
                "no attention that can be followed from layer to layer; use cp_lrp or attn_lrp"
            )
    return pairs


def _source(argument: Any) -> Any:
    """Return the node whose numbers an argument has, in another shape."""
    while isinstance(argument, Node) and _operation(argument) in UNCHANGED:
        argument = argument.args[0]
    return argument


def _operation(node: Node) -> str:
    return operation_name(node.target).removeprefix("aten.").partition(".")[0]
