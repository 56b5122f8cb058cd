"""Activations made larger or smaller in height and width."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Row

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


def _resize(call: Call) -> Tensor:
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


def _wanted(call: Call, activation: Tensor) -> dict[str, Any]:
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


RESIZINGS: Mapping[str, Row] = {"Resize": _resize, "Upsample": _resize}
