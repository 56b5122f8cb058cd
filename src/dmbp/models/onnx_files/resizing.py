"""Activations made larger or smaller in height and width."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Row

_MODES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("nearest", "asymmetric"): {"mode": "nearest"},
    ("linear", "half_pixel"): {"mode": "bilinear"},
    ("linear", "pytorch_half_pixel"): {"mode": "bilinear"},
    ("linear", "align_corners"): {"mode": "bilinear", "align_corners": True},
    ("cubic", "half_pixel"): {"mode": "bicubic"},
    ("cubic", "pytorch_half_pixel"): {"mode": "bicubic"},
    ("cubic", "align_corners"): {"mode": "bicubic", "align_corners": True},
}
"""Which ways of ONNX's are torch's, by mode and by where an output's pixels lie in the input."""


def _resize(call: Call) -> Tensor:
    activation, mode = call.tensor(0), call.attribute("mode", "nearest")
    places = call.attribute("coordinate_transformation_mode", "half_pixel")
    places = places if call.version >= 11 else "asymmetric"
    known = _MODES.get((mode, places))
    floors = mode != "nearest" or call.attribute("nearest_mode", "floor") == "floor"
    if activation.dim() != 4 or known is None or not floors:
        raise ModelError(f"Resize of an ONNX file by {mode!r} at {places!r} is not supported")
    return F.interpolate(activation, _size(call, activation), **known)


def _size(call: Call, activation: Tensor) -> list[Any]:
    """Height and width afterwards, given as they are or by their ratio."""
    if call.given(3):
        return list(call.setting(3, "")[-2:])
    scales = call.setting(2 if call.version >= 11 else 1, "scales")[-2:]
    return [int(size * scale) for size, scale in zip(activation.shape[2:], scales, strict=True)]


RESIZINGS: Mapping[str, Row] = {"Resize": _resize, "Upsample": _resize}
