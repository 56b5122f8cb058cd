"""Windows that slide over an activation: their strides, dilations and padding; and the poolings.

ONNX pads the two ends of a dimension each by its own number, or by a rule (`auto_pad`). Torch pads
both alike, so an uneven rest is put on beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Row

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


def windows(call: Call, activation: Tensor, shape: Sequence[int]) -> Windows:
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


def _max_pool(call: Call) -> Tensor:
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


def _average_pool(call: Call) -> Tensor:
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


def _global_average(call: Call) -> Tensor:
    activation = call.tensor(0)
    return _GLOBAL_AVERAGES[activation.dim() - 2](activation, 1)


def _global_largest(call: Call) -> Tensor:
    activation = call.tensor(0)
    return activation.amax(tuple(range(2, activation.dim())), keepdim=True)


POOLINGS: Mapping[str, Row] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_largest,
}
