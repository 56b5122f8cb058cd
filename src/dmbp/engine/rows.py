"""Where the rows of a step's result are, from where they are in what it reads.

Fast engines learn row by row, so at a mask it has to be known which elements are whose. An
operation keeps rows apart if what it moves, cuts or sums are other dimensions; of an operation not
listed here nothing is known, and a network with masks behind it is left to the reference engine. A
reshape changes no order, so it takes rows along wherever they end in one dimension.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from torch import Tensor

from dmbp.engine.layout import FIRST, Layout
from dmbp.engine.row_rules import ROW_RULES
from dmbp.engine.streams import Example
from dmbp.linear.piece import Piece
from dmbp.linear.step import Step


def layout_of(step: Step, examples: Sequence[Example], rows: int) -> Layout | None:
    """Where the rows of a step's result are; None where that is not known."""
    if rows == 1:
        return _alone(step.shape)
    layouts = {example.layout for example in examples}
    layout = layouts.pop()
    if layouts or layout is None:
        return None
    name = step.operation.removeprefix("aten.").partition(".")[0]
    if isinstance(step.function, Piece) or step.site is not None or name == "getitem":
        return layout
    if name in _ELEMENTWISE:
        ranks = {example.value.dim() for example in examples}
        return layout if step.shape is not None and ranks == {len(step.shape)} else None
    first = examples[0].value
    if not isinstance(first, Tensor):
        return None
    if name in _RESHAPES:
        return None if step.shape is None else _reshaped(first.shape, step.shape, layout, rows)
    return _moved(step, [example.value for example in examples], layout)


def _alone(shape: Sequence[int] | None) -> Layout | None:
    """Of a single row is everything, wherever it is."""
    if shape is None:
        return FIRST
    return Layout(inner=shape[0]) if shape else None


def _reshaped(
    before: Sequence[int], after: Sequence[int], layout: Layout, rows: int
) -> Layout | None:
    """The dimension that all rows are in afterwards; as many elements come ahead of them."""
    ahead = prod(before[: layout.dimension]) * layout.outer
    for dimension, size in enumerate(after):
        outer, rest = divmod(ahead, prod(after[:dimension]))
        if rest == 0 and outer and size % (outer * rows) == 0:
            return Layout(dimension, outer, size // (outer * rows))
    return None


def _moved(step: Step, values: Sequence[Tensor], layout: Layout) -> Layout | None:
    """By the operation's rule; with the same size in the end, or it is not believed."""
    name = step.operation.removeprefix("aten.").partition(".")[0]
    first, rule = values[0], ROW_RULES.get(name)
    if rule is None or (layout.dimension > 0 and len({value.dim() for value in values}) > 1):
        return None
    dimension = rule(step, first, layout.dimension)
    if dimension is None:
        return None
    size = first.shape[layout.dimension]
    if step.shape is not None and tuple(step.shape[dimension : dimension + 1]) != (size,):
        return None
    return replace(layout, dimension=dimension)


_ELEMENTWISE = {
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "neg",
    "positive",
    "masked_fill",
    "where",
    "clone",
    "contiguous",
    "alias",
    "detach",
    "copy",
    "lift_fresh_copy",
    "dropout",
    "feature_dropout",
    "maximum",
    "minimum",
    "relu",
    "relu6",
    "leaky_relu",
    "prelu",
    "hardtanh",
    "clamp",
    "clamp_min",
    "clamp_max",
    "threshold",
    "abs",
    "softshrink",
    "hardshrink",
    "rrelu",
    "_prelu_kernel",
    *("tanh", "silu", "gelu", "hardswish", "mish", "elu", "selu", "celu", "softplus"),
    *("log_sigmoid", "sigmoid", "hardsigmoid", "sin", "cos", "exp", "pow", "square", "log"),
    *("sqrt", "rsqrt", "reciprocal", "erf", "identity"),
}

_RESHAPES = {"reshape", "view", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}
