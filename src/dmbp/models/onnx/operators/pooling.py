"""ONNX operators that combine many elements into one: pooling, resizing and reductions.

Convolution and pooling slide windows over an activation. ONNX may pad the two ends of a dimension
differently, by numbers or by a rule (`auto_pad`), whereas torch pads both ends equally; uneven
padding is therefore added to the activation first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import Implementation, NodeCall

_AVERAGES = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MAXIMA = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_GLOBAL_AVERAGES = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


@dataclass(frozen=True)
class SlidingWindows:
    """Windows over an activation; `before` and `after` pad the two ends of each dimension."""

    shape: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]


def sliding_windows(call: NodeCall, activation: Tensor, shape: Sequence[int]) -> SlidingWindows:
    """Return the windows that the attributes of a convolution or pooling describe."""
    rank = len(shape)
    strides = call.attribute("strides") or [1] * rank
    dilations = call.attribute("dilations") or [1] * rank
    rule = call.attribute("auto_pad", "NOTSET")
    pads = list(call.attribute("pads") or [0] * 2 * rank)
    if rule.startswith("SAME"):
        totals = [
            max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
            for size, stride, extent, dilation in zip(
                activation.shape[2:], strides, shape, dilations, strict=True
            )
        ]
        less, more = [n // 2 for n in totals], [n - n // 2 for n in totals]
        pads = less + more if rule == "SAME_UPPER" else more + less
    return SlidingWindows(list(shape), strides, dilations, pads[:rank], pads[rank:])


def pad_unevenly(
    activation: Tensor, window: SlidingWindows, *, fill: float
) -> tuple[Tensor, list[int]]:
    """Add uneven padding to an activation; return it and the padding that is left to torch."""
    if window.before == window.after:
        return activation, window.before
    ends = list(zip(window.before, window.after, strict=True))
    torch_order = [n for pair in reversed(ends) for n in pair]
    return F.pad(activation, torch_order, value=fill), [0] * len(ends)


def _max_pool(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    window = sliding_windows(call, activation, call.attribute("kernel_shape"))
    # Padded with the smallest number rather than minus infinity, because a linear network
    # multiplies the elements that it does not select by zero.
    activation, padding = pad_unevenly(activation, window, fill=torch.finfo(activation.dtype).min)
    pooled = _MAXIMA[len(window.shape)](
        activation,
        window.shape,
        window.strides,
        padding,
        window.dilations,
        ceil_mode=bool(call.attribute("ceil_mode", 0)),
    )
    return _drop_windows_in_padding(pooled, window, call.tensor(0))


def _average_pool(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    window = sliding_windows(call, activation, call.attribute("kernel_shape"))
    if set(window.dilations) != {1}:
        raise ModelError("AveragePool with dilations is not supported in ONNX files")
    settings: dict[str, Any] = {"ceil_mode": bool(call.attribute("ceil_mode", 0))}
    pool, counts = _AVERAGES[len(window.shape)], bool(call.attribute("count_include_pad", 0))
    larger, padding = pad_unevenly(activation, window, fill=0.0)
    settings |= {"kernel_size": window.shape, "stride": window.strides, "padding": padding}
    if larger is activation or counts:
        return _drop_windows_in_padding(
            pool(larger, count_include_pad=counts, **settings), window, activation
        )
    share, _ = pad_unevenly(torch.ones_like(activation[:1, :1]), window, fill=0.0)
    return _drop_windows_in_padding(
        pool(larger, **settings) / pool(share, **settings), window, activation
    )


def _drop_windows_in_padding(pooled: Tensor, window: SlidingWindows, activation: Tensor) -> Tensor:
    """Drop the windows that start after the activation, which `ceil_mode` may add."""
    for dimension, size in enumerate(activation.shape[2:]):
        reach = size + window.before[dimension]
        pooled = pooled.narrow(
            dimension + 2,
            0,
            min(pooled.shape[dimension + 2], -(-reach // window.strides[dimension])),
        )
    return pooled


def _global_average(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    return _GLOBAL_AVERAGES[activation.dim() - 2](activation, 1)


def _global_max(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    return activation.amax(tuple(range(2, activation.dim())), keepdim=True)


POOLINGS: Mapping[str, Implementation] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
}


_MODES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("nearest", "asymmetric"): {"mode": "nearest"},
    ("nearest", "half_pixel"): {"mode": "nearest"},
    ("nearest", "pytorch_half_pixel"): {"mode": "nearest"},
    ("linear", "half_pixel"): {"mode": "bilinear"},
    ("linear", "pytorch_half_pixel"): {"mode": "bilinear"},
    ("linear", "align_corners"): {"mode": "bilinear", "align_corners": True},
    ("cubic", "half_pixel"): {"mode": "bicubic"},
    ("cubic", "pytorch_half_pixel"): {"mode": "bicubic"},
    ("cubic", "align_corners"): {"mode": "bicubic", "align_corners": True},
}
"""Torch's settings by ONNX's mode and its `coordinate_transformation_mode`."""


def _resize(call: NodeCall) -> Tensor:
    activation, mode = call.tensor(0), call.attribute("mode", "nearest")
    coordinates = call.attribute("coordinate_transformation_mode", "half_pixel")
    coordinates = coordinates if call.version >= 11 else "asymmetric"
    rounding = call.attribute(
        "nearest_mode", "round_prefer_floor" if call.version > 10 else "floor"
    )
    settings = _MODES.get((mode, coordinates))
    target = _target_size(call, activation)
    is_supported = mode != "nearest" or _matches_torch(coordinates, rounding, target, activation)
    if settings is None or not is_supported:
        how = f"{mode!r} ({rounding})" if mode == "nearest" else repr(mode)
        raise ModelError(f"Resize by {how} at {coordinates!r} is not supported in ONNX files")
    return F.interpolate(activation, **target, **settings)


def _target_size(call: NodeCall, activation: Tensor) -> dict[str, Any]:
    """Return `F.interpolate`'s `size` or `scale_factor` for height and width."""
    is_size = call.has_input(3)
    scales = 2 if call.version >= 11 else 1
    factors = list(call.setting(3, "") if is_size else call.setting(scales, "scales"))
    channels = activation.shape[1] if is_size else 1
    if activation.dim() != 4 or len(factors) != 4 or factors[1] != channels:
        raise ModelError("Resize is supported in ONNX files only for height and width of images")
    return {"size": factors[2:]} if is_size else {"scale_factor": factors[2:]}


def _matches_torch(
    coordinates: str, rounding: str, target: dict[str, Any], activation: Tensor
) -> bool:
    """Return whether ONNX's nearest pixel is also torch's, which repeats each pixel n times."""
    sizes = target.get("size")
    ratios = target.get("scale_factor") or [
        size / old for size, old in zip(sizes or (), activation.shape[2:], strict=True)
    ]
    if coordinates == "asymmetric" and rounding == "floor":
        return True
    largest = 2 if coordinates == "asymmetric" else math.inf
    is_round = rounding == "round_prefer_floor" or (rounding[:5] == "round" and largest > 2)
    return is_round and all(ratio == int(ratio) and 1 <= ratio <= largest for ratio in ratios)


def _grid_sample(call: NodeCall) -> Tensor:
    mode: str = call.attribute("mode", "linear")
    return F.grid_sample(
        call.tensor(0),
        call.tensor(1),
        {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode),
        call.attribute("padding_mode", "zeros"),
        align_corners=bool(call.attribute("align_corners", 0)),
    )


RESIZINGS: Mapping[str, Implementation] = {
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _grid_sample,
}


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Implementation:
    def implementation(call: NodeCall) -> Tensor:
        activation, axes = call.tensor(0), call.setting(1, "axes")
        is_noop_if_empty = bool(call.attribute("noop_with_empty_axes", 0))
        if is_noop_if_empty and not axes and axes != 0:
            return activation
        dimensions = [axes] if isinstance(axes, int) else axes or list(range(activation.dim()))
        return function(activation, dimensions, bool(call.attribute("keepdims", 1)))

    return implementation


def _product(value: Tensor, axes: list[int], keep: bool) -> Tensor:
    rank = value.dim()
    for axis in sorted((axis % rank for axis in axes), reverse=True):
        value = value.prod(axis, keep)
    return value


def _index_of_extreme(function: Callable[..., Tensor]) -> Implementation:
    return lambda call: function(
        call.tensor(0), dim=call.attribute("axis", 0), keepdim=bool(call.attribute("keepdims", 1))
    )


def _top_k(call: NodeCall) -> Any:
    count = call.setting(1, "k")
    return torch.topk(
        call.tensor(0),
        count[0] if isinstance(count, list) else count,
        dim=call.attribute("axis", -1),
        largest=bool(call.attribute("largest", 1)),
    )


REDUCTIONS: Mapping[str, Implementation] = {
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
    "ArgMax": _index_of_extreme(torch.argmax),
    "ArgMin": _index_of_extreme(torch.argmin),
    "TopK": _top_k,
    "CumSum": lambda call: call.tensor(0).cumsum(call.setting(1, "axis")),
}
