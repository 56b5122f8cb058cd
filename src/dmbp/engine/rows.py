"""Which dimension of an activation counts the rows.

Fast engines learn row by row, so at a mask it has to be the first, and known to be. An operation
leaves the rows where they are if what it moves, cuts or sums are other dimensions; of an operation
not listed here nothing is known, and a network with masks behind it is left to the reference
engine.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dmbp.engine.streams import Example
from dmbp.linear.freeze import Step
from dmbp.linear.piece import Piece

Rule = Callable[[Step, int, int], bool]
"""Whether the rows stay first, from a step, the rank of what it reads, and the number of rows."""


def row_dimension(step: Step, examples: Sequence[Example], rows: int) -> int | None:
    """The dimension of a step's result that counts the rows; None where that is not known."""
    places = {example.row for example in examples}
    if len(places) != 1 or None in places:
        return None
    row = next(iter(places))
    assert row is not None
    name = step.operation.removeprefix("aten.").partition(".")[0]
    if isinstance(step.function, Piece) or step.site is not None or name == "getitem":
        return row
    first = examples[0].value
    if name in _ELEMENTWISE:
        ranks = {example.value.dim() for example in examples}
        return row if step.shape is not None and ranks == {len(step.shape)} else None
    if not hasattr(first, "dim"):
        return None
    if name in _MOVES:
        return _MOVES[name](step, first.dim(), row)
    rule = _RULES.get(name)
    return 0 if row == 0 and rule is not None and rule(step, first.dim(), rows) else None


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


def _argument(step: Step, position: int, name: str, default: Any) -> Any:
    if position < len(step.arguments):
        return step.arguments[position]
    return step.keywords.get(name, default)


def _of_rank(rank: int) -> Rule:
    return lambda _step, found, _rows: found == rank


def _from_rank(rank: int) -> Rule:
    return lambda _step, found, _rows: found >= rank


def _elsewhere(position: int, name: str, default: Any) -> Rule:
    """The dimension, or dimensions, that an operation works along are not the first."""

    def rule(step: Step, rank: int, _rows: int) -> bool:
        given = _argument(step, position, name, default)
        dimensions = given if isinstance(given, list | tuple) else [given]
        return bool(dimensions) and all(isinstance(d, int) and d % rank != 0 for d in dimensions)

    return rule


def _leading(step: Step, _rank: int, rows: int) -> bool:
    """A reshape that leaves the first dimension's size leaves the rows."""
    return step.shape is not None and len(step.shape) > 0 and step.shape[0] == rows


def _permuted(step: Step, rank: int, row: int) -> int | None:
    return [d % rank for d in _argument(step, 1, "dims", [])].index(row)


def _swapped(step: Step, rank: int, row: int) -> int | None:
    pair = [_argument(step, 1, "dim0", 0) % rank, _argument(step, 2, "dim1", 0) % rank]
    return pair[1 - pair.index(row)] if row in pair else row


def _flipped(step: Step, rank: int, row: int) -> int | None:
    return None if row in [d % rank for d in _argument(step, 1, "dims", [])] else row


def _taken(step: Step, rank: int, row: int) -> int | None:
    """A dimension is gone; those behind it come one forward."""
    dimension = _argument(step, 1, "dim", 0) % rank
    return None if dimension == row else row - (dimension < row)


_MOVES: Mapping[str, Callable[[Step, int, int], int | None]] = {
    "permute": _permuted,
    "transpose": _swapped,
    "flip": _flipped,
    "select": _taken,
    "unbind": _taken,
}
"""From a step, the rank of what it reads and where the rows are, to where they are then."""


def _slices(step: Step, rank: int, rows: int) -> bool:
    """Another dimension, or all rows."""
    along_rows = _argument(step, 1, "dim", 0) % rank == 0
    return not along_rows or (step.shape is not None and step.shape[0] == rows)


def _scatters(step: Step, rank: int, rows: int) -> bool:
    """Into another dimension, or over all rows."""
    start, end = (_argument(step, k, name, None) for k, name in ((3, "start"), (4, "end")))
    whole = start in (None, 0) and (end is None or end >= rows)
    return whole or _argument(step, 2, "dim", 0) % rank != 0


def _inserts(step: Step, rank: int, _rows: int) -> bool:
    return _argument(step, 1, "dim", 0) % (rank + 1) != 0


def _pads(step: Step, rank: int, _rows: int) -> bool:
    return len(_argument(step, 1, "pad", [])) // 2 < rank


def _multiplies(step: Step, rank: int, _rows: int) -> bool:
    """Rows times a matrix, or a matrix for each row."""
    others = [argument for argument in step.arguments if hasattr(argument, "dim")]
    if len(step.reads) != 1 or len(others) != 1:
        return False
    by_row = rank >= 3 and others[0].dim() == rank
    return by_row or (rank >= 2 and others[0] is step.arguments[1] and others[0].dim() == 2)


def _normalises(step: Step, rank: int, _rows: int) -> bool:
    return len(_argument(step, 1, "normalized_shape", [])) < rank


def _indexes(step: Step, _rank: int, _rows: int) -> bool:
    """By one index, not of the rows; several may come out in front."""
    indices = _argument(step, 1, "indices", [])
    return indices[0] is None and sum(index is not None for index in indices) == 1


def _by_dimensions(names: Sequence[str]) -> dict[str, Rule]:
    """`conv2d` and the like take a batch of a fixed rank."""
    return {f"{name}{n}d": _of_rank(n + 2) for name in names for n in (1, 2, 3)}


_RULES: Mapping[str, Rule] = {
    **_by_dimensions(["conv", "conv_transpose", "avg_pool", "adaptive_avg_pool", "max_pool"]),
    **_by_dimensions(["adaptive_max_pool", "reflection_pad", "replication_pad"]),
    **_by_dimensions(["upsample_nearest", "_upsample_nearest_exact", "_adaptive_avg_pool"]),
    "max_pool2d_with_indices": _of_rank(4),
    "upsample_linear1d": _of_rank(3),
    "upsample_bilinear2d": _of_rank(4),
    "upsample_bicubic2d": _of_rank(4),
    "_upsample_bilinear2d_aa": _of_rank(4),
    "_upsample_bicubic2d_aa": _of_rank(4),
    "upsample_trilinear3d": _of_rank(5),
    "pixel_shuffle": _from_rank(4),
    "pixel_unshuffle": _from_rank(4),
    "channel_shuffle": _from_rank(3),
    "batch_norm": _from_rank(2),
    "_native_batch_norm_legit_no_training": _from_rank(2),
    "linear": _from_rank(2),
    "layer_norm": _normalises,
    "rms_norm": _normalises,
    "group_norm": _from_rank(2),
    "instance_norm": _from_rank(3),
    "scaled_dot_product_attention": _from_rank(3),
    "bmm": _multiplies,
    "index": _indexes,
    "gather": _elsewhere(1, "dim", 0),
    "topk": _elsewhere(2, "dim", -1),
    "sort": _elsewhere(1, "dim", -1),
    "expand": _leading,
    "linalg_vector_norm": _elsewhere(2, "dim", None),
    "norm": _elsewhere(2, "dim", None),
    "var": _elsewhere(1, "dim", None),
    "std": _elsewhere(1, "dim", None),
    "logsumexp": _elsewhere(1, "dim", None),
    "matmul": _multiplies,
    "mm": _multiplies,
    "reshape": _leading,
    "view": _leading,
    "_unsafe_view": _leading,
    "flatten": _leading,
    "unflatten": _leading,
    "unsqueeze": _inserts,
    "stack": _inserts,
    "squeeze": _elsewhere(1, "dim", None),
    "slice": _slices,
    "narrow": _elsewhere(1, "dim", 0),
    "index_select": _elsewhere(1, "dim", 0),
    "split": _elsewhere(2, "dim", 0),
    "split_with_sizes": _elsewhere(2, "dim", 0),
    "chunk": _elsewhere(2, "dim", 0),
    "roll": _elsewhere(2, "dims", None),
    "cat": _elsewhere(1, "dim", 0),
    "slice_scatter": _scatters,
    "select_scatter": _elsewhere(2, "dim", 0),
    "mean": _elsewhere(1, "dim", None),
    "sum": _elsewhere(1, "dim", None),
    "amax": _elsewhere(1, "dim", None),
    "amin": _elsewhere(1, "dim", None),
    "max": _elsewhere(1, "dim", None),
    "min": _elsewhere(1, "dim", None),
    "cumsum": _elsewhere(1, "dim", None),
    "pad": _pads,
    "constant_pad_nd": _pads,
}
