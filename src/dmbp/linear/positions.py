"""Where on the image the elements of each activation lie.

In a convolutional network every activation is (rows, channel, height, width), or has one axis for
a signal and three for a volume. Token networks keep
patches in a sequence behind a class token, in windows, with channels last or in an order of their
own. `find_positions` therefore runs a captured graph once and carries along, for each element of
each activation, the point of the image that it stands for:

- operations that move elements, such as a reshape, a roll or a concatenation, move points alike;
- a convolution, a pooling or an interpolation covers the same part of the image at another
  resolution;
- a sum over elements that stand for different points stands for their mean, so that merging four
  patches into one gives a coarser grid; a sum over the whole image stands for no point;
- attention and other matrix products have the points of their queries, their left factor's rows;
- an elementwise operation has the points of its operand with the most of them, which is the skip
  path in `x + attention(x)`.

What does not come from one place, such as a class token, stands for no point. Nothing here depends
on names of architectures, on the weights or on the image.

    >>> from dmbp.linear.capture.export import capture
    >>> found = find_positions(capture(model, images), images)
    >>> found["relu"].axes[0][0, 0, :2, 0].tolist()        # the first two of its six rows
    [0.125, 0.25]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from dmbp.linear.capture.export import CapturedGraph
from dmbp.linear.rules.table import operation_name

MAX_AXES = 3
"""Signals have one axis, images two and volumes three."""

ADAPTIVE_POOLS: Mapping[int, Callable[[Tensor, Any], Tensor]] = {
    1: functional.adaptive_avg_pool1d,
    2: functional.adaptive_avg_pool2d,
    3: functional.adaptive_avg_pool3d,
}

DIGITS = 4
"""Points that agree to so many digits are the same; rows of pixels are further apart than that."""


@dataclass(frozen=True)
class Positions:
    """The point of the image that each element of an activation of this `shape` stands for.

    `axes` holds a tensor for each axis of the image: y and x, or time for a signal. Numbers lie
    between 0, the top left corner, and 1; 0 itself means no point. They have size 1 along
    dimensions of the activation in which points are the same.
    """

    axes: tuple[Tensor, ...]
    shape: tuple[int, ...]

    @staticmethod
    def of(axes: Sequence[Tensor]) -> Positions | None:
        """Return positions given for every element, or None if no element stands for a point."""
        known = torch.stack([(part > 0) & (part < 1) for part in axes]).all(0)
        if not known.any():  # other numbers come from padding
            return None
        shape = tuple(axes[0].shape)
        parts = [torch.where(known, part, 0.0) for part in axes]
        for dim in range(len(shape)):
            if all(_is_constant(part, dim) for part in parts):
                parts = [part.narrow(dim, 0, 1) for part in parts]
        return Positions(tuple(parts), shape)

    @property
    def known(self) -> Tensor:
        """Where elements stand for a point."""
        return self.axes[0] > 0

    @property
    def points(self) -> int:
        """How many different points there are."""
        known = self.known.flatten()
        points = torch.stack([part.flatten()[known] for part in self.axes], 1)
        return len(points.round(decimals=DIGITS).unique(dim=0))

    def expanded(self) -> tuple[Tensor, ...]:
        """Return where every element lies along each axis."""
        return tuple(part.expand(self.shape) for part in self.axes)

    def with_axes(
        self, change: Callable[[Tensor], Tensor], shape: Sequence[int] | None = None
    ) -> Positions:
        """Return positions whose axes are changed alike, for an activation of another shape."""
        changed = tuple(change(part) for part in self.axes)
        return Positions(changed, self.shape if shape is None else tuple(shape))

    def broadcast(self, shape: Sequence[int]) -> Positions | None:
        """Return the positions of this activation repeated to another shape, if it fits."""
        missing = len(shape) - len(self.shape)
        own = (*(1,) * missing, *self.shape)
        if missing < 0 or any(a not in (1, b) for a, b in zip(own, shape, strict=True)):
            return None
        return self.with_axes(lambda part: part.reshape((1,) * missing + part.shape), shape)

    def averaged(self, dims: Sequence[int]) -> Positions | None:
        """Return the mean point over some dimensions, which become 1; None if it is one for all."""
        wide = {dim % len(self.shape) for dim in dims}
        shape = tuple(1 if dim in wide else size for dim, size in enumerate(self.shape))
        if all(self.axes[0].shape[dim] == 1 for dim in wide):
            return Positions(self.axes, shape)
        over = sorted(wide)
        count = self.known.sum(over, keepdim=True).clamp(min=1)
        mean = Positions.of([part.sum(over, keepdim=True) / count for part in self.axes])
        if mean is None or mean.points < 2:
            return None
        return Positions(mean.axes, shape)


def _is_constant(part: Tensor, dim: int) -> bool:
    size = part.shape[dim]
    return size > 1 and bool((part.narrow(dim, 1, size - 1) == part.narrow(dim, 0, 1)).all())


Found = Positions | Sequence[Positions | None] | None
"""What is known about a node's value: a tensor's positions, or those of each part of a tuple."""


@torch.no_grad()
def find_positions(captured: CapturedGraph, inputs: Tensor) -> dict[str, Positions]:
    """Return the positions of every activation that has any, by the name of its node.

    Args:
        captured: The graph, with its extra inputs as constants.
        inputs: An image (1, channel, *size), or as many as the graph is bound to.

    Returns:
        Positions of the activations of a single image.
    """
    values: dict[Node, Any] = dict(captured.constants)
    values[captured.input] = inputs
    found: dict[Node, Found] = {captured.input: _image(inputs)}
    last_reader = {parent: node for node in captured.graph.nodes for parent in node.all_input_nodes}
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        assert callable(node.target)
        values[node] = node.target(*arguments, **keywords)
        if any(found.get(parent) is not None for parent in node.all_input_nodes):
            found[node] = _Call(node, values, found, len(inputs), inputs.dim() - 2).positions()
        for parent in node.all_input_nodes:
            if last_reader[parent] is node:
                del values[parent]
    single = {node.name: _first_row(each, len(inputs)) for node, each in found.items()}
    return {name: each for name, each in single.items() if each is not None}


def _first_row(found: Found, rows: int) -> Positions | None:
    """Return the positions of the first of several rows."""
    if not isinstance(found, Positions) or rows == 1:
        return found if isinstance(found, Positions) else None
    length, remainder = divmod(found.shape[0], rows)
    if remainder:
        return None
    return found.with_axes(lambda part: part[:length], (length, *found.shape[1:]))


def _image(inputs: Tensor) -> Positions | None:
    """Return the positions of pixels, or of any map (rows, channel, *size)."""
    size = inputs.shape[2:]
    if not 1 <= len(size) <= MAX_AXES:
        return None
    along = [(torch.arange(side, device=inputs.device) + 0.5) / side for side in size]
    axes = torch.meshgrid(*along, indexing="ij")
    return Positions(tuple(part[None, None] for part in axes), tuple(inputs.shape))


@dataclass(frozen=True)
class _Call:
    """A node whose value is known, and positions of the values it reads."""

    node: Node
    values: Mapping[Node, Any]
    found: Mapping[Node, Found]
    rows: int
    axes: int

    @property
    def value(self) -> Any:
        return self.values[self.node]

    def positions(self) -> Found:
        """Return the positions of the node's value."""
        name = operation_name(self.node.target).removeprefix("aten.").partition(".")[0]
        if name == "getitem":
            return self._part()
        if any(word in name for word in ("conv", "pool", "upsample")):
            return self._each(self._resampled)
        rule = _RULES.get(name, _Call._elementwise)
        return rule(self)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return the value of an argument."""
        given = self.node.args[position : position + 1] or [self.node.kwargs.get(name, default)]
        return torch.fx.map_arg(given[0], self.values.__getitem__)

    def read(self, position: int) -> Positions | None:
        """Return the positions of an argument."""
        argument = self.node.args[position] if position < len(self.node.args) else None
        found = self.found.get(argument) if isinstance(argument, Node) else None
        return found if isinstance(found, Positions) else None

    def _part(self) -> Positions | None:
        parts = self.found.get(cast("Node", self.node.args[0]))
        index = cast("int", self.node.args[1])
        return parts[index] if isinstance(parts, Sequence) else None

    def _each(self, rule: Callable[[Tensor], Positions | None]) -> Found:
        """Apply a rule to the node's value, or to each part of a tuple."""
        if isinstance(self.value, list | tuple):
            parts = cast("Sequence[Any]", self.value)
            return [rule(part) if _is_real(part) else None for part in parts]
        return rule(self.value) if _is_real(self.value) else None

    def _moved(self) -> Found:
        """Run the operation on points in place of numbers."""
        function: Any = self.node.target
        if "view" in str(function):  # points have other strides than the model's activations
            function = torch.ops.aten.reshape.default

        def run(which: int) -> Any:
            def coordinate(parent: Node) -> Any:
                found, value = self.found.get(parent), self.values[parent]
                if isinstance(found, Positions):
                    return found.expanded()[which]
                return torch.zeros(value.shape, device=value.device) if _is_real(value) else value

            arguments, keywords = torch.fx.map_arg((self.node.args, self.node.kwargs), coordinate)
            return function(*arguments, **keywords)

        axes = [run(which) for which in range(self.axes)]
        if isinstance(axes[0], Tensor):
            return Positions.of(axes)
        return [Positions.of(parts) for parts in zip(*axes, strict=True)]

    def _reduced(self) -> Found:
        """Average over the dimensions that a reduction adds up or picks from."""
        own, dims = self.read(0), self.argument(1, "dim")
        if own is None or dims is None or dims == []:
            return None
        listed: list[int] = [dims] if isinstance(dims, int) else list(dims)
        mean = own.averaged(listed)
        if mean is None:
            return None
        axes = mean.expanded()
        return self._each(lambda part: Positions.of([k.reshape(part.shape) for k in axes]))

    def _resampled(self, value: Tensor) -> Positions | None:
        """Spread the points of a map over its new size.

        What is known of no point counts as a map of the whole image again.
        """
        own = self.read(0)
        own = None if own is None else own.averaged([1])
        dims = value.dim() - 2
        if own is None or value.dim() != len(own.shape):
            is_map = dims == self.axes and len(value) == self.rows and not self._is_pointwise()
            return _image(value) if is_map else None
        if own.shape[2:] == value.shape[2:]:
            return own.broadcast((own.shape[0], *value.shape[1:]))
        if not self.axes <= dims <= MAX_AXES:
            return None
        pool, size = ADAPTIVE_POOLS[dims], list(value.shape[2:])
        known = pool(own.known.expand(own.shape).to(value.dtype), size).clamp(min=1e-6)
        mean = Positions.of([pool(part, size) / known for part in own.expanded()])
        return None if mean is None else mean.broadcast(value.shape)

    def _is_pointwise(self) -> bool:
        """Return whether this is a convolution that sees one position at a time."""
        weight = self.argument(1, "weight")
        return isinstance(weight, Tensor) and weight.shape[2:].numel() == 1

    def _product(self) -> Positions | None:
        """Return the points of the left factor's rows, or of the right factor's columns."""
        first = 1 if len(self.node.args) > 2 else 0  # addmm adds the product to its first argument
        factors = [(self.read(first), -1), (self.read(first + 1), -2)]
        for factor, summed in factors:
            if factor is None or len(factor.shape) < 2:
                continue
            mean = factor.averaged([summed])
            product = None if mean is None else mean.broadcast(self.value.shape)
            if product is not None and product.points > 1:
                return product
        return None

    def _linear(self) -> Positions | None:
        own = self.read(0)
        mean = None if own is None else own.averaged([-1])
        return None if mean is None else mean.broadcast(self.value.shape)

    def _elementwise(self) -> Found:
        """Return the operand with most points that is broadcast to the result."""
        return self._each(lambda part: most_points(self._operands(part.shape)))

    def _operands(self, shape: Sequence[int]) -> Iterator[Positions]:
        for parent in self.node.all_input_nodes:
            own = self.found.get(parent)
            fitting = own.broadcast(shape) if isinstance(own, Positions) else None
            if fitting is not None:
                yield fitting


def most_points(candidates: Iterator[Positions]) -> Positions | None:
    """Return the first of the positions with the most points."""
    listed = list(candidates)
    return listed[0] if len(listed) == 1 else max(listed, key=lambda p: p.points, default=None)


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


REARRANGEMENTS = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "flatten",
        "unflatten",
        "permute",
        "transpose",
        "t",
        "numpy_T",
        "movedim",
        "squeeze",
        "unsqueeze",
        "expand",
        "repeat",
        "tile",
        "slice",
        "select",
        "narrow",
        "index",
        "index_select",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "getitem",
        "roll",
        "flip",
        "rot90",
        "diagonal",
        "clone",
        "contiguous",
    ]
)
"""Operations that reorder, cut or repeat elements."""

MOVES = REARRANGEMENTS | frozenset(
    [
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "im2col",
        "unfold",
        "gather",
        "take_along_dim",
        "cat",
        "stack",
        "hstack",
        "vstack",
        "slice_scatter",
        "select_scatter",
        "index_put",
        "scatter",
        "pad",
        "constant_pad_nd",
        "reflection_pad2d",
        "replication_pad2d",
    ]
)
"""Operations that move elements without changing them."""

_RULES: Mapping[str, Callable[[_Call], Found]] = {
    **dict.fromkeys(MOVES, _Call._moved),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "max", "min", "median"), _Call._reduced),
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm", "baddbmm"), _Call._product),
    "linear": _Call._linear,
    "scaled_dot_product_attention": _Call._linear,
}
