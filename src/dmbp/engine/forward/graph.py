"""Rewrites a captured graph for a fast forward pass, and compiles it to a Python function.

1. `ForwardGraph` copies what the output needs. Whatever does not depend on the images becomes a
   constant, operations that return their input are left out, and `view` becomes `reshape`, because
   images have their channels last.
2. `fold_batch_norms` folds each batch norm into the convolution or linear layer before it.
3. `cast` changes constants and casts from float32 to 16 bits.
4. `join_biases` adds the biases of two convolutions whose results are summed, because one of them
   cannot add its bias for free.
5. `fuse_convolutions` replaces a convolution, the sum and the activation after it by one function.
6. `replace` runs another function instead of an operation, such as our max-pooling.
7. `compiled` returns the Python function, which drops every value after its last use.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from dmbp.engine.forward.convolution import ConvolutionLayer, Epilogue, Fuse
from dmbp.engine.plan.rewrites import (
    BATCH_NORM,
    CONVOLUTION,
    IDENTITIES,
    LINEAR,
    fold_into_weight,
    parse_convolution,
    scales_and_shifts,
)
from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.rules.base import Function
from dmbp.linear.rules.table import operation_name

FOLDABLE = {"aten.conv1d.default", CONVOLUTION, "aten.conv3d.default", LINEAR}
"""Layers whose output channels are dimension 0 of the weight."""

ADDITION = "aten.add.Tensor"

AS_RESHAPE = {"aten.view.default", "aten._unsafe_view.default"}
"""Operations that fail on some memory orders; a reshape does not."""


class ForwardGraph:
    """A copy of the part of a captured graph that computes the output from the images.

    Attributes:
        graph: The graph, whose first node is the placeholder of the images.
        constants: The tensors that it reads, by their `get_attr` nodes.
    """

    def __init__(self, captured: CapturedGraph) -> None:
        self.graph = Graph()
        self.constants: dict[Node, Tensor] = {}
        values: dict[Node, Any] = {n: t.detach() for n, t in captured.constants.items()}
        copies: dict[Node, Node] = {captured.input: self.graph.placeholder("images")}
        copies[captured.input].meta["val"] = captured.input.meta["val"]

        def copied(parent: Node) -> Any:
            if parent not in copies and isinstance(values[parent], Tensor):
                copies[parent] = self._constant(values[parent])
            return copies[parent] if parent in copies else values[parent]

        for node in _needed(captured):
            if all(parent in values for parent in node.all_input_nodes):
                assert callable(node.target)
                arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*arguments, **keywords)
            elif operation_name(node.target) in IDENTITIES:
                (source,) = node.all_input_nodes
                copies[node] = copies[source]
            else:
                copies[node] = self._copy(node, copied)
        self.graph.output(copies[captured.output])

    def _copy(self, node: Node, copied: Any) -> Node:
        """Add the copy of an operation, which reads the copies of its arguments."""
        is_view = operation_name(node.target) in AS_RESHAPE
        target: Any = torch.ops.aten.reshape.default if is_view else node.target
        arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), copied)
        copy = self.graph.call_function(target, arguments, keywords)
        copy.meta["val"] = node.meta.get("val")
        return copy

    def _constant(self, value: Tensor) -> Node:
        node = self.graph.create_node("get_attr", f"constant_{len(self.constants)}")
        self.constants[node] = value
        return node

    def fold_batch_norms(self) -> None:
        """Fold each batch norm into the layer before it, if nothing else reads that layer."""
        pairs = [
            (layer, norm)
            for norm in self.graph.nodes
            if _is(norm, {BATCH_NORM}) and self._has_constants(norm, slice(1, 5))
            if norm.args[5] is False  # it normalises by its own statistics, not by the batch's
            for layer in [norm.args[0]]
            if self._is_foldable(layer) and _only_reader(layer) is norm
        ]
        found = scales_and_shifts([self._values(norm) for _, norm in pairs])
        for (layer, norm), (scale, shift) in zip(pairs, found, strict=True):
            weight, *others = self._values(layer)[1:]
            bias = others[0] if others else None
            with self.graph.inserting_before(layer):
                folded = map(self._constant, fold_into_weight(weight, bias, scale, shift))
                layer.args = (layer.args[0], *folded, *layer.args[3:])
            norm.replace_all_uses_with(layer)
            self.graph.erase_node(norm)

    def _is_foldable(self, layer: Any) -> bool:
        """Return whether the layer's output channels are dimension 1 of its result."""
        if not _is(layer, FOLDABLE) or not self._has_constants(layer, slice(1, 3)):
            return False
        value = layer.meta["val"]
        return operation_name(layer.target) != LINEAR or value.dim() == 2

    def cast(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` instead of float32; batch norms keep their statistics in float32."""

        def converted(value: Any) -> Any:
            return dtype if value is torch.float32 else value

        for node in self.graph.nodes:
            node.args = map_aggregate(node.args, converted)
            node.kwargs = map_aggregate(node.kwargs, converted)
        for node, value in self.constants.items():
            keeps = all(_is(reader, {BATCH_NORM}) for reader in node.users)
            if value.dtype == torch.float32 and not keeps:
                self.constants[node] = value.to(dtype)

    def join_biases(self) -> None:
        """Give the bias of a convolution to the earlier one that its result is added to.

        That one is fused with the sum.
        """
        order = {node: position for position, node in enumerate(self.graph.nodes)}
        for addition in order:
            if not _is(addition, {ADDITION}) or len(addition.args) != 2 or addition.kwargs:
                continue
            pair = {part for part in addition.args if self._is_biased_convolution(part)}
            if len(pair) != 2 or any(_only_reader(node) is not addition for node in pair):
                continue
            first, second = sorted(pair, key=order.__getitem__)
            if _form(first) != _form(second):
                continue
            with self.graph.inserting_before(first):
                joined = self._constant(self._values(first)[2] + self._values(second)[2])
            first.args = (*first.args[:2], joined, *first.args[3:])
            second.args = (*second.args[:2], None, *second.args[3:])

    def _is_biased_convolution(self, node: Any) -> bool:
        """Return whether a value is a convolution with a constant weight and bias."""
        if not _is(node, {CONVOLUTION}) or not self._has_constants(node, slice(1, 3)):
            return False
        return len(node.args) > 2 and node.args[2] is not None

    def fuse_convolutions(self, fuse: Fuse, *, batch: int) -> int:
        """Replace convolutions by the functions of `fuse`; return how many it replaces.

        `batch` is the batch size that the functions are optimised for.
        """
        fused = 0
        for node in list(self.graph.nodes):
            if not _is(node, {CONVOLUTION}) or not self._has_constants(node, slice(1, 3)):
                continue
            layer = self._convolution_layer(node, batch)
            for nodes, epilogue, residual in _epilogues(node):
                function = fuse(layer, epilogue)
                if function is not None:
                    self._replace(nodes, function, (node.args[0], *residual))
                    fused += 1
                    break
        return fused

    def replace(self, operation: str, function: Function) -> None:
        """Call a function with the arguments of every call of an operation, instead of it."""
        for node in self.graph.nodes:
            if _is(node, {operation}):
                node.target = function

    def _convolution_layer(self, node: Node, batch: int) -> ConvolutionLayer:
        weight, bias, stride, padding, dilation, groups = parse_convolution(self._values(node))
        assert isinstance(node.args[0], Node)
        shape = (batch, *(int(side) for side in node.args[0].meta["val"].shape[1:]))
        return ConvolutionLayer(weight, bias, (stride, padding, dilation, groups), shape)

    def _replace(self, nodes: Sequence[Node], function: Function, arguments: Any) -> None:
        """Replace consecutive operations by one function, at the place of the last of them."""
        end = nodes[-1]
        with self.graph.inserting_before(end):
            node = self.graph.call_function(function, arguments)
        node.meta["val"] = end.meta["val"]
        end.replace_all_uses_with(node)
        for replaced in reversed(nodes):
            self.graph.erase_node(replaced)

    def _has_constants(self, node: Node, positions: slice) -> bool:
        """Return whether the arguments at these positions are constants or None."""
        found = node.args[positions]
        return not node.kwargs and all(part is None or part in self.constants for part in found)

    def _values(self, node: Node) -> list[Any]:
        """Return a node's arguments, with tensors in place of constants."""
        return [
            self.constants.get(part, part) if isinstance(part, Node) else part for part in node.args
        ]

    def compiled(self) -> Function:
        """Return the graph as a Python function of the images."""
        unread = [node for node in self.constants if not node.users]
        for node in unread:
            self.graph.erase_node(node)
            del self.constants[node]
        for node in self.graph.nodes:
            node.meta.clear()  # fake tensors, and through them the export's state
        tensors = {str(node.target): _channels_last(node, t) for node, t in self.constants.items()}
        return GraphModule(tensors, self.graph).forward


def _needed(captured: CapturedGraph) -> list[Node]:
    """Return the operations that the output depends on, in order."""
    needed = {captured.output}
    for node in reversed(captured.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in captured.graph.nodes if node.op == "call_function" and node in needed]


def _is(node: Any, operations: set[str]) -> bool:
    """Return whether a value is a node that calls one of these operations."""
    is_call = isinstance(node, Node) and node.op == "call_function"
    return is_call and operation_name(node.target) in operations


def _only_reader(node: Node) -> Node | None:
    """Return the one node that reads this one, or None if there are several or none."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _epilogues(node: Node) -> Iterator[tuple[tuple[Node, ...], Epilogue, tuple[Node, ...]]]:
    """Yield a convolution with what follows it: nodes, epilogue, residual; the longest first."""
    addition = _only_reader(node)
    residual = None if addition is None else _residual(addition, node)
    if addition is not None and residual is not None:
        activation = _only_reader(addition)
        if activation is not None and _is_function_of(activation, addition):
            name, arguments = operation_name(activation.target), activation.args[1:]
            yield (node, addition, activation), Epilogue(True, name, arguments), (residual,)
        yield (node, addition), Epilogue(adds_residual=True), (residual,)
    elif addition is not None and _is_function_of(addition, node):
        name, arguments = operation_name(addition.target), addition.args[1:]
        yield (node, addition), Epilogue(False, name, arguments), ()
    yield (node,), Epilogue(), ()


def _residual(addition: Node, node: Node) -> Node | None:
    """Return what an addition adds to a node's result, if it is another tensor of that form."""
    if not _is(addition, {ADDITION}) or len(addition.args) != 2 or addition.kwargs:
        return None
    others = [part for part in addition.args if part is not node]
    if len(others) != 1 or not isinstance(others[0], Node):
        return None
    return others[0] if _form(others[0]) == _form(node) is not None else None


def _is_function_of(reader: Node, node: Node) -> bool:
    """Return whether a reader takes the node first and no other node, as an activation does."""
    is_call = reader.op == "call_function" and not reader.kwargs
    return is_call and reader.all_input_nodes == [node] and reader.args[0] is node


def _form(node: Node) -> tuple[Any, ...] | None:
    """Return a tensor's dtype and sizes, as text because they may be symbols."""
    value = node.meta.get("val")
    return (value.dtype, *map(str, value.shape)) if isinstance(value, Tensor) else None


def _channels_last(node: Node, value: Tensor) -> Tensor:
    """Return a convolution's weight with channels last, and any other constant as it is."""
    weighs = any(_is(reader, {CONVOLUTION}) and reader.args[1] is node for reader in node.users)
    is_weight = weighs and value.dim() == 4
    return value.contiguous(memory_format=torch.channels_last) if is_weight else value
