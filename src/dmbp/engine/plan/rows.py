"""Where the rows of a step's result are, from where they are in its inputs.

Engines learn masks row by row, so at every site they must know which elements belong to which row.
An operation keeps rows separate if it moves, cuts or sums other dimensions; `ROW_RULES` says for
each known operation where the rows go. A network with a site behind any other operation is left
to the autograd engine. A reshape changes no order, so it keeps rows wherever they end up within
one dimension.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from torch import Tensor

from dmbp.engine.plan.streams import ROWS_FIRST, Example, RowLayout
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import Step

RowRule = Callable[[Step, Tensor, int], int | None]
"""Maps a step, its first input and the rows' dimension there to the rows' dimension in the result,
or to None if rows are mixed or reordered."""


def _argument(step: Step, position: int, name: str, default: Any) -> Any:
    if position < len(step.arguments):
        return step.arguments[position]
    return step.keywords.get(name, default)


def _dimensions(step: Step, position: int, name: str, *, rank: int) -> list[int]:
    """Return the dimensions given to an operation, non-negative; empty if none are given."""
    given = _argument(step, position, name, None)
    several: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    return [d % rank for d in several] if all(isinstance(d, int) for d in several) else []


def _batch(rank: int) -> RowRule:
    """A batch in dimension 0 of a tensor of exactly this rank, as in `conv2d`."""
    return lambda _, first, row: row if first.dim() == rank and row == 0 else None


def _batch_from(rank: int) -> RowRule:
    """A batch in dimension 0 of a tensor of at least this rank."""
    return lambda _, first, row: row if first.dim() >= rank and row == 0 else None


def _before_last(count: int) -> RowRule:
    """The operation works on the last `count` dimensions and keeps the rank."""

    def rule(step: Step, first: Tensor, row: int) -> int | None:
        same = step.shape is not None and len(step.shape) == first.dim()
        return row if same and row < first.dim() - count else None

    return rule


def _elsewhere(position: int, name: str, default: int | None = None) -> RowRule:
    """The operation works along dimensions that do not hold the rows."""

    def rule(step: Step, first: Tensor, row: int) -> int | None:
        is_given = _argument(step, position, name, None) is not None
        dimensions = _dimensions(step, position, name, rank=first.dim())
        if not is_given and default is not None:
            dimensions = [default % first.dim()]
        return row if dimensions and row not in dimensions else None

    return rule


def _reduced(position: int) -> RowRule:
    """Other dimensions are reduced, and removed or kept with size one."""

    def rule(step: Step, first: Tensor, row: int) -> int | None:
        dimensions = _dimensions(step, position, "dim", rank=first.dim())
        if not dimensions or row in dimensions:
            return None
        ahead = sum(d < row for d in dimensions)
        if step.shape is None:
            return None if ahead else row
        gone = first.dim() - len(step.shape)
        return {0: row, len(dimensions): row - ahead}.get(gone)

    return rule


def _permuted(step: Step, first: Tensor, row: int) -> int | None:
    return _dimensions(step, 1, "dims", rank=first.dim()).index(row)


def _swapped(step: Step, first: Tensor, row: int) -> int | None:
    pair = [_argument(step, k, name, 0) % first.dim() for k, name in ((1, "dim0"), (2, "dim1"))]
    return pair[1 - pair.index(row)] if row in pair else row


def _taken(step: Step, first: Tensor, row: int) -> int | None:
    """A dimension is removed; later ones move one forward."""
    dimension = _argument(step, 1, "dim", 0) % first.dim()
    return None if dimension == row else row - (dimension < row)


def _inserted(step: Step, first: Tensor, row: int) -> int | None:
    return row + (_argument(step, 1, "dim", 0) % (first.dim() + 1) <= row)


def _expanded(step: Step, first: Tensor, row: int) -> int | None:
    """New dimensions are added in front."""
    return None if step.shape is None else row + len(step.shape) - first.dim()


def _sliced(step: Step, first: Tensor, row: int) -> int | None:
    """The slice is along another dimension, or takes all rows."""
    along = _argument(step, 1, "dim", 0) % first.dim()
    return row if along != row or step.shape == tuple(first.shape) else None


def _scattered(step: Step, first: Tensor, row: int) -> int | None:
    """The values are written along another dimension, or over all rows."""
    start, end = (_argument(step, k, name, None) for k, name in ((3, "start"), (4, "end")))
    whole = start in (None, 0) and (end is None or end >= first.shape[row])
    return row if whole or _argument(step, 2, "dim", 0) % first.dim() != row else None


def _padded(step: Step, first: Tensor, row: int) -> int | None:
    return row if row < first.dim() - len(_argument(step, 1, "pad", [])) // 2 else None


def _multiplied(step: Step, first: Tensor, row: int) -> int | None:
    """Rows are multiplied by one matrix, or each by a matrix of its own."""
    rank = first.dim()
    others = [argument for argument in step.arguments if isinstance(argument, Tensor)]
    if len(step.reads) != 1 or len(others) != 1:
        return None
    if others[0].dim() == rank and row < rank - 2:
        return row
    by_matrix = others[0] is step.arguments[1] and others[0].dim() == 2
    return row if by_matrix and row < rank - 1 else None


def _normalised(step: Step, first: Tensor, row: int) -> int | None:
    return row if row < first.dim() - len(_argument(step, 1, "normalized_shape", [])) else None


def _indexed(step: Step, first: Tensor, row: int) -> int | None:  # noqa: ARG001
    """One index after the rows keeps them; several indices may move dimensions to the front."""
    places = [k for k, index in enumerate(_argument(step, 1, "indices", [])) if index is not None]
    return row if len(places) == 1 and places[0] > row else None


def _by_dimensions(names: Sequence[str]) -> dict[str, RowRule]:
    """Return rules for `conv2d` and the like, which take a batch of a fixed rank."""
    return {f"{name}{n}d": _batch(n + 2) for name in names for n in (1, 2, 3)}


ROW_RULES: Mapping[str, RowRule] = {
    **_by_dimensions(["conv", "conv_transpose", "avg_pool", "adaptive_avg_pool", "max_pool"]),
    **_by_dimensions(["adaptive_max_pool", "reflection_pad", "replication_pad"]),
    **_by_dimensions(["upsample_nearest", "_upsample_nearest_exact", "_adaptive_avg_pool"]),
    "max_pool2d_with_indices": _batch(4),
    "upsample_linear1d": _batch(3),
    "upsample_bilinear2d": _batch(4),
    "upsample_bicubic2d": _batch(4),
    "_upsample_bilinear2d_aa": _batch(4),
    "_upsample_bicubic2d_aa": _batch(4),
    "upsample_trilinear3d": _batch(5),
    "pixel_shuffle": _batch_from(4),
    "pixel_unshuffle": _batch_from(4),
    "channel_shuffle": _batch_from(3),
    "batch_norm": _batch_from(2),
    "_native_batch_norm_legit_no_training": _batch_from(2),
    "group_norm": _batch_from(2),
    "instance_norm": _batch_from(3),
    "linear": _before_last(1),
    "layer_norm": _normalised,
    "rms_norm": _normalised,
    "scaled_dot_product_attention": _before_last(2),
    "bmm": _multiplied,
    "matmul": _multiplied,
    "mm": _multiplied,
    "permute": _permuted,
    "transpose": _swapped,
    "select": _taken,
    "unbind": _taken,
    "stack": _inserted,
    "expand": _expanded,
    "index": _indexed,
    "slice": _sliced,
    "slice_scatter": _scattered,
    "pad": _padded,
    "constant_pad_nd": _padded,
    "flip": _elsewhere(1, "dims"),
    "roll": _elsewhere(2, "dims"),
    "gather": _elsewhere(1, "dim", 0),
    "topk": _elsewhere(2, "dim", -1),
    "sort": _elsewhere(1, "dim", -1),
    "narrow": _elsewhere(1, "dim", 0),
    "index_select": _elsewhere(1, "dim", 0),
    "split": _elsewhere(2, "dim", 0),
    "split_with_sizes": _elsewhere(2, "dim", 0),
    "chunk": _elsewhere(2, "dim", 0),
    "cat": _elsewhere(1, "dim", 0),
    "select_scatter": _elsewhere(2, "dim", 0),
    "cumsum": _elsewhere(1, "dim"),
    "mean": _reduced(1),
    "sum": _reduced(1),
    "amax": _reduced(1),
    "amin": _reduced(1),
    "max": _reduced(1),
    "min": _reduced(1),
    "var": _reduced(1),
    "std": _reduced(1),
    "logsumexp": _reduced(1),
    "norm": _reduced(2),
    "linalg_vector_norm": _reduced(2),
}


def result_layout(step: Step, examples: Sequence[Example], rows: int) -> RowLayout | None:
    """Return where the rows of a step's result are, or None if unknown."""
    if rows == 1:
        return _single_row(step.shape)
    layouts = {example.layout for example in examples}
    layout = layouts.pop()
    if layouts or layout is None:
        return None
    name = step.operation.removeprefix("aten.").partition(".")[0]
    if isinstance(step.function, ElementwiseLine) or step.site is not None or name == "getitem":
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


def _single_row(shape: Sequence[int] | None) -> RowLayout | None:
    """With one row, every element belongs to it."""
    if shape is None:
        return ROWS_FIRST
    return RowLayout(inner=shape[0]) if shape else None


def _reshaped(
    before: Sequence[int], after: Sequence[int], layout: RowLayout, rows: int
) -> RowLayout | None:
    """Find the dimension that holds all rows after a reshape: the elements before them stay."""
    ahead = prod(before[: layout.dimension]) * layout.outer
    for dimension, size in enumerate(after):
        outer, rest = divmod(ahead, prod(after[:dimension]))
        if rest == 0 and outer and size % (outer * rows) == 0:
            return RowLayout(dimension, outer, size // (outer * rows))
    return None


def _moved(step: Step, values: Sequence[Tensor], layout: RowLayout) -> RowLayout | None:
    """Apply the operation's rule, and check that the dimension it names has the same size."""
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
