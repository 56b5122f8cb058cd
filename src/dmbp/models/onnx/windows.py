"""Windows that slide over an activation: their strides, dilations and padding; and the poolings.

ONNX pads the two ends of a dimension each by its own number, or by a rule (`auto_pad`). Torch pads
both alike, so an uneven rest is put on beforehand.

Activations made larger or smaller in height and width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx.call import Implementation, NodeCall

_AVERAGES = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_LARGEST = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_GLOBAL_AVERAGES = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


@dataclass(frozen=True)
class Windows:
    """How windows of a `shape` slide; `before` and `after` is the padding of each dimension."""

    shape: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]


def windows(call: NodeCall, activation: Tensor, shape: Sequence[int]) -> Windows:
    """The windows of a convolution or a pooling."""
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
    return Windows(list(shape), strides, dilations, pads[:rank], pads[rank:])


def padded(activation: Tensor, window: Windows, *, fill: float) -> tuple[Tensor, list[int]]:
    """The activation with what torch cannot pad itself, and what is left to pad by torch."""
    if window.before == window.after:
        return activation, window.before
    ends = list(zip(window.before, window.after, strict=True))
    turned = [n for pair in reversed(ends) for n in pair]
    return F.pad(activation, turned, value=fill), [0] * len(ends)


def _max_pool(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    window = windows(call, activation, call.attribute("kernel_shape"))
    # The smallest number, not minus infinity: a linear network multiplies what it does not pick.
    activation, padding = padded(activation, window, fill=torch.finfo(activation.dtype).min)
    pooled = _LARGEST[len(window.shape)](
        activation,
        window.shape,
        window.strides,
        padding,
        window.dilations,
        ceil_mode=bool(call.attribute("ceil_mode", 0)),
    )
    return _started(pooled, window, call.tensor(0))


def _average_pool(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    window = windows(call, activation, call.attribute("kernel_shape"))
    if set(window.dilations) != {1}:
        raise ModelError("AveragePool with dilations is not supported in ONNX files")
    settings: dict[str, Any] = {"ceil_mode": bool(call.attribute("ceil_mode", 0))}
    pool, counts = _AVERAGES[len(window.shape)], bool(call.attribute("count_include_pad", 0))
    larger, padding = padded(activation, window, fill=0.0)
    settings |= {"kernel_size": window.shape, "stride": window.strides, "padding": padding}
    if larger is activation or counts:
        return _started(pool(larger, count_include_pad=counts, **settings), window, activation)
    share, _ = padded(torch.ones_like(activation[:1, :1]), window, fill=0.0)
    return _started(pool(larger, **settings) / pool(share, **settings), window, activation)


def _started(pooled: Tensor, window: Windows, activation: Tensor) -> Tensor:
    """Without the windows that start behind the activation, which rounding up may add."""
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


def _global_largest(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    return activation.amax(tuple(range(2, activation.dim())), keepdim=True)


POOLINGS: Mapping[str, Implementation] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_largest,
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
"""Which ways of ONNX's are torch's, by mode and by where an output's pixels lie in the input."""


def _resize(call: NodeCall) -> Tensor:
    activation, mode = call.tensor(0), call.attribute("mode", "nearest")
    places = call.attribute("coordinate_transformation_mode", "half_pixel")
    places = places if call.version >= 11 else "asymmetric"
    rounding = call.attribute(
        "nearest_mode", "round_prefer_floor" if call.version > 10 else "floor"
    )
    known = _MODES.get((mode, places))
    wanted = _wanted(call, activation)
    is_known = mode != "nearest" or _is_torchs(places, rounding, wanted, activation)
    if known is None or not is_known:
        how = f"{mode!r} ({rounding})" if mode == "nearest" else repr(mode)
        raise ModelError(f"Resize by {how} at {places!r} is not supported in ONNX files")
    return F.interpolate(activation, **wanted, **known)


def _wanted(call: NodeCall, activation: Tensor) -> dict[str, Any]:
    """Height and width afterwards, or their ratios, from those of every dimension."""
    is_size = call.given(3)
    ratios = 2 if call.version >= 11 else 1
    given = list(call.setting(3, "") if is_size else call.setting(ratios, "scales"))
    channels = activation.shape[1] if is_size else 1
    if activation.dim() != 4 or len(given) != 4 or given[1] != channels:
        raise ModelError("Resize is supported of height and width only in ONNX files")
    return {"size": given[2:]} if is_size else {"scale_factor": given[2:]}


def _is_torchs(places: str, rounding: str, wanted: dict[str, Any], activation: Tensor) -> bool:
    """Whether the nearest pixel is the one that torch takes: the pixel itself, n times over."""
    sizes = wanted.get("size")
    ratios = wanted.get("scale_factor") or [
        size / own for size, own in zip(sizes or (), activation.shape[2:], strict=True)
    ]
    if places == "asymmetric" and rounding == "floor":
        return True
    most = 2 if places == "asymmetric" else math.inf
    is_round = rounding == "round_prefer_floor" or (rounding[:5] == "round" and most > 2)
    return is_round and all(ratio == int(ratio) and 1 <= ratio <= most for ratio in ratios)


RESIZINGS: Mapping[str, Implementation] = {"Resize": _resize, "Upsample": _resize}
