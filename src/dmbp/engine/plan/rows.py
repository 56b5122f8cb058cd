"""Tracks which dimension of each step's result holds the rows; a row is one target of one image.

Engines learn masks row by row, so at every site they must know which elements belong to which row.
An operation keeps rows separate if it only moves, cuts or sums other dimensions; `ROW_RULES` says
for each such operation which dimension then holds the rows. A reshape keeps the order of elements,
so rows stay known as long as a single dimension holds all of them. If a site follows any other
operation, the network falls back to the autograd engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from torch import Tensor

from dmbp.engine.plan.streams import ROWS_FIRST, Example, RowLayout
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.steps import LinearStep

RowRule = Callable[[LinearStep, Tensor, int], int | None]
"""Maps a step, its first input and the dimension that holds the rows of this input to the dimension
that holds the rows of the result, or to None if the step mixes or reorders rows."""


def _argument(step: LinearStep, position: int, name: str, default: Any) -> Any:
    """Return an argument that may be passed by position or by name."""
    if position < len(step.arguments):
        return step.arguments[position]
    return step.keywords.get(name, default)


def _dimensions(step: LinearStep, position: int, name: str, *, rank: int) -> list[int]:
    """Return a dimension argument as non-negative integers; an empty list if it is missing."""
    value = _argument(step, position, name, None)
    dims: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    return [d % rank for d in dims] if all(isinstance(d, int) for d in dims) else []


def _exact_rank(rank: int) -> RowRule:
    """Return a rule that keeps rows in dimension 0 of an input with exactly `rank` dimensions."""
    return lambda _, first, row_dim: row_dim if first.dim() == rank and row_dim == 0 else None


def _min_rank(rank: int) -> RowRule:
    """Return a rule that keeps rows in dimension 0 of an input with at least `rank` dimensions."""
    return lambda _, first, row_dim: row_dim if first.dim() >= rank and row_dim == 0 else None


def _before_last(count: int) -> RowRule:
    """Return a rule for operations on the last `count` dimensions that keep the rank."""

    def rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
        keeps_rank = step.shape is not None and len(step.shape) == first.dim()
        return row_dim if keeps_rank and row_dim < first.dim() - count else None

    return rule


def _along_other_dim(position: int, name: str, default: int | None = None) -> RowRule:
    """Return a rule that keeps rows if the operation works along dimensions that do not hold them.

    The argument at `position`, or with this `name`, lists the dimensions.
    """

    def rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
        is_given = _argument(step, position, name, None) is not None
        dimensions = _dimensions(step, position, name, rank=first.dim())
        if not is_given and default is not None:
            dimensions = [default % first.dim()]
        return row_dim if dimensions and row_dim not in dimensions else None

    return rule


def _reduction_rule(position: int) -> RowRule:
    """Return a rule that keeps rows if the operation reduces dimensions that do not hold them.

    The argument at `position` lists the dimensions, which are removed or keep size one.
    """

    def rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
        dimensions = _dimensions(step, position, "dim", rank=first.dim())
        if not dimensions or row_dim in dimensions:
            return None
        dims_before = sum(d < row_dim for d in dimensions)
        if step.shape is None:
            return None if dims_before else row_dim
        removed = first.dim() - len(step.shape)
        return {0: row_dim, len(dimensions): row_dim - dims_before}.get(removed)

    return rule


def _permute_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Return the position to which the rows' dimension is permuted."""
    return _dimensions(step, 1, "dims", rank=first.dim()).index(row_dim)


def _transpose_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Return the other of the two swapped dimensions if one of them holds the rows."""
    pair = [_argument(step, k, name, 0) % first.dim() for k, name in ((1, "dim0"), (2, "dim1"))]
    return pair[1 - pair.index(row_dim)] if row_dim in pair else row_dim


def _select_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Keep rows if another dimension is removed; the dimensions after it move one forward."""
    dimension = _argument(step, 1, "dim", 0) % first.dim()
    return None if dimension == row_dim else row_dim - (dimension < row_dim)


def _stack_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Move rows one dimension back if the new dimension is inserted before them."""
    return row_dim + (_argument(step, 1, "dim", 0) % (first.dim() + 1) <= row_dim)


def _expand_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Move rows back by the number of new dimensions, which are added in front."""
    return None if step.shape is None else row_dim + len(step.shape) - first.dim()


def _slice_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Keep rows if the slice is along another dimension or takes all rows."""
    along = _argument(step, 1, "dim", 0) % first.dim()
    return row_dim if along != row_dim or step.shape == tuple(first.shape) else None


def _slice_scatter_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Keep rows if values are written along another dimension or over all rows."""
    start, end = (_argument(step, k, name, None) for k, name in ((3, "start"), (4, "end")))
    all_rows = start in (None, 0) and (end is None or end >= first.shape[row_dim])
    return row_dim if all_rows or _argument(step, 2, "dim", 0) % first.dim() != row_dim else None


def _pad_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Keep rows if only dimensions after them are padded."""
    padded_dims = len(_argument(step, 1, "pad", [])) // 2
    return row_dim if row_dim < first.dim() - padded_dims else None


def _matmul_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Keep rows if one constant matrix multiplies all of them, or a separate one each row."""
    rank = first.dim()
    constants = [argument for argument in step.arguments if isinstance(argument, Tensor)]
    if len(step.reads) != 1 or len(constants) != 1:
        return None
    if constants[0].dim() == rank and row_dim < rank - 2:
        return row_dim
    by_matrix = constants[0] is step.arguments[1] and constants[0].dim() == 2
    return row_dim if by_matrix and row_dim < rank - 1 else None


def _norm_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:
    """Keep rows if only dimensions after them are normalised."""
    normalised_dims = len(_argument(step, 1, "normalized_shape", []))
    return row_dim if row_dim < first.dim() - normalised_dims else None


def _index_rule(step: LinearStep, first: Tensor, row_dim: int) -> int | None:  # noqa: ARG001
    """Keep rows if a single later dimension is indexed; more indices may reorder dimensions."""
    indices = _argument(step, 1, "indices", [])
    indexed_dims = [k for k, index in enumerate(indices) if index is not None]
    return row_dim if len(indexed_dims) == 1 and indexed_dims[0] > row_dim else None


def _exact_rank_rules(names: Sequence[str]) -> dict[str, RowRule]:
    """Return rules for the 1d, 2d and 3d variants of operations such as `conv`."""
    return {f"{name}{n}d": _exact_rank(n + 2) for name in names for n in (1, 2, 3)}


ROW_RULES: Mapping[str, RowRule] = {
    **_exact_rank_rules(["conv", "conv_transpose", "avg_pool", "adaptive_avg_pool", "max_pool"]),
    **_exact_rank_rules(["adaptive_max_pool", "reflection_pad", "replication_pad"]),
    **_exact_rank_rules(["upsample_nearest", "_upsample_nearest_exact", "_adaptive_avg_pool"]),
    "max_pool2d_with_indices": _exact_rank(4),
    "upsample_linear1d": _exact_rank(3),
    "upsample_bilinear2d": _exact_rank(4),
    "upsample_bicubic2d": _exact_rank(4),
    "_upsample_bilinear2d_aa": _exact_rank(4),
    "_upsample_bicubic2d_aa": _exact_rank(4),
    "upsample_trilinear3d": _exact_rank(5),
    "pixel_shuffle": _min_rank(4),
    "pixel_unshuffle": _min_rank(4),
    "channel_shuffle": _min_rank(3),
    "batch_norm": _min_rank(2),
    "_native_batch_norm_legit_no_training": _min_rank(2),
    "group_norm": _min_rank(2),
    "instance_norm": _min_rank(3),
    "linear": _before_last(1),
    "layer_norm": _norm_rule,
    "rms_norm": _norm_rule,
    "scaled_dot_product_attention": _before_last(2),
    "bmm": _matmul_rule,
    "matmul": _matmul_rule,
    "mm": _matmul_rule,
    "permute": _permute_rule,
    "transpose": _transpose_rule,
    "select": _select_rule,
    "unbind": _select_rule,
    "stack": _stack_rule,
    "expand": _expand_rule,
    "index": _index_rule,
    "slice": _slice_rule,
    "slice_scatter": _slice_scatter_rule,
    "pad": _pad_rule,
    "constant_pad_nd": _pad_rule,
    "flip": _along_other_dim(1, "dims"),
    "roll": _along_other_dim(2, "dims"),
    "gather": _along_other_dim(1, "dim", 0),
    "topk": _along_other_dim(2, "dim", -1),
    "sort": _along_other_dim(1, "dim", -1),
    "narrow": _along_other_dim(1, "dim", 0),
    "index_select": _along_other_dim(1, "dim", 0),
    "split": _along_other_dim(2, "dim", 0),
    "split_with_sizes": _along_other_dim(2, "dim", 0),
    "chunk": _along_other_dim(2, "dim", 0),
    "cat": _along_other_dim(1, "dim", 0),
    "select_scatter": _along_other_dim(2, "dim", 0),
    "cumsum": _along_other_dim(1, "dim"),
    "mean": _reduction_rule(1),
    "sum": _reduction_rule(1),
    "amax": _reduction_rule(1),
    "amin": _reduction_rule(1),
    "max": _reduction_rule(1),
    "min": _reduction_rule(1),
    "var": _reduction_rule(1),
    "std": _reduction_rule(1),
    "logsumexp": _reduction_rule(1),
    "norm": _reduction_rule(2),
    "linalg_vector_norm": _reduction_rule(2),
}
"""The rule of each operation that may move the rows to another dimension, by name."""


def result_layout(step: LinearStep, examples: Sequence[Example], rows: int) -> RowLayout | None:
    """Return the layout of the rows in a step's result, or None if it is unknown."""
    if rows == 1:
        return _single_row_layout(step.shape)
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
        if step.shape is None:
            return None
        return _layout_after_reshape(first.shape, step.shape, layout, rows)
    return _apply_row_rule(step, [example.value for example in examples], layout)


def _single_row_layout(shape: Sequence[int] | None) -> RowLayout | None:
    """Return the layout of a batch of one row, to which every element belongs."""
    if shape is None:
        return ROWS_FIRST
    return RowLayout(inner=shape[0]) if shape else None


def _layout_after_reshape(
    before: Sequence[int], after: Sequence[int], layout: RowLayout, rows: int
) -> RowLayout | None:
    """Return the layout after a reshape, or None if no single dimension holds all rows."""
    # A reshape keeps the order of elements, so the sequence of rows repeats equally often.
    repeats = prod(before[: layout.dimension]) * layout.outer
    for dimension, size in enumerate(after):
        outer, remainder = divmod(repeats, prod(after[:dimension]))
        if remainder == 0 and outer and size % (outer * rows) == 0:
            return RowLayout(dimension, outer, size // (outer * rows))
    return None


def _apply_row_rule(
    step: LinearStep, values: Sequence[Tensor], layout: RowLayout
) -> RowLayout | None:
    """Apply the operation's rule, and check that the dimension it returns has the same size."""
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
    *("add", "sub", "rsub", "mul", "div", "neg", "positive", "maximum", "minimum"),
    *("masked_fill", "where", "clone", "contiguous", "alias", "detach", "copy", "lift_fresh_copy"),
    *("dropout", "feature_dropout"),
}
"""Operations on single elements. Activations are not listed: they freeze to an `ElementwiseLine`,
which `result_layout` recognises whatever its name is."""

_RESHAPES = {"reshape", "view", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"}
"""Operations that keep the order of elements and change only the shape."""
