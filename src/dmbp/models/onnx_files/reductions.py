"""Sums, means, extremes and order over some dimensions."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dmbp.models.onnx_files.call import Call, Row


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Row:
    def row(call: Call) -> Tensor:
        activation, axes = call.tensor(0), call.setting(1, "axes")
        if not axes and axes != 0 and call.attribute("noop_with_empty_axes", 0):
            return activation
        listed = [axes] if isinstance(axes, int) else axes or list(range(activation.dim()))
        return function(activation, listed, bool(call.attribute("keepdims", 1)))

    return row


def _product(value: Tensor, axes: list[int], keep: bool) -> Tensor:
    rank = value.dim()
    for axis in sorted((axis % rank for axis in axes), reverse=True):
        value = value.prod(axis, keep)
    return value


def _largest_index(function: Callable[..., Tensor]) -> Row:
    return lambda call: function(
        call.tensor(0), dim=call.attribute("axis", 0), keepdim=bool(call.attribute("keepdims", 1))
    )


def _top(call: Call) -> Any:
    count = call.setting(1, "k")
    return torch.topk(
        call.tensor(0),
        count[0] if isinstance(count, list) else count,
        dim=call.attribute("axis", -1),
        largest=bool(call.attribute("largest", 1)),
    )


REDUCTIONS: Mapping[str, Row] = {
    "ReduceMean": _reduction(lambda value, axes, keep: value.mean(axes, keep)),
    "ReduceSum": _reduction(lambda value, axes, keep: value.sum(axes, keep)),
    "ReduceMax": _reduction(lambda value, axes, keep: value.amax(axes, keep)),
    "ReduceMin": _reduction(lambda value, axes, keep: value.amin(axes, keep)),
    "ReduceL1": _reduction(lambda value, axes, keep: value.abs().sum(axes, keep)),
    "ReduceL2": _reduction(
        lambda value, axes, keep: torch.linalg.vector_norm(value, 2, axes, keep)
    ),
    "ReduceSumSquare": _reduction(lambda value, axes, keep: value.square().sum(axes, keep)),
    "ReduceProd": _reduction(_product),
    "ReduceLogSumExp": _reduction(lambda value, axes, keep: value.logsumexp(axes, keep)),
    "ArgMax": _largest_index(torch.argmax),
    "ArgMin": _largest_index(torch.argmin),
    "TopK": _top,
    "CumSum": lambda call: call.tensor(0).cumsum(call.setting(1, "axis")),
}
