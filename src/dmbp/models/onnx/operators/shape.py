"""ONNX operators that rearrange elements: views, concatenation, slicing, gathering, padding."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import Implementation, NodeCall

_PADDINGS = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _shape(call: NodeCall) -> list[Any]:
    sizes = list(call.tensor(0).shape)
    return sizes[call.attribute("start", 0) : call.attribute("end", len(sizes))]


def _reshape(call: NodeCall) -> Tensor:
    value, sizes = call.tensor(0), call.setting(1, "shape")
    if not call.attribute("allowzero", 0):
        sizes = [
            value.shape[k] if isinstance(size, int) and size == 0 else size
            for k, size in enumerate(sizes)
        ]
    return value.reshape(sizes)


def _flatten(call: NodeCall) -> Tensor:
    value, axis = call.tensor(0), call.attribute("axis", 1)
    axis = axis + value.dim() if axis < 0 else axis
    if axis == 1:
        return value.flatten(1)
    if axis in (0, value.dim()):
        return value.reshape((1, -1) if axis == 0 else (-1, 1))
    return value.flatten(axis).flatten(0, axis - 1)


def _transpose(call: NodeCall) -> Tensor:
    value = call.tensor(0)
    return value.permute(call.attribute("perm") or tuple(reversed(range(value.dim()))))


def _squeeze(call: NodeCall) -> Tensor:
    value, axes = call.tensor(0), _as_list(call.setting(1, "axes"))
    for axis in axes:  # PyTorch would leave a longer dimension as it is
        size = value.shape[axis]
        if isinstance(size, int) and size != 1:
            raise ModelError(f"Squeeze of a dimension of length {size} is not possible")
    return value.squeeze(tuple(axes)) if axes else value.squeeze()


def _unsqueeze(call: NodeCall) -> Tensor:
    value, axes = call.tensor(0), _as_list(call.setting(1, "axes"))
    rank = value.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = value.unsqueeze(axis)
    return value


def _concat(call: NodeCall) -> Tensor:
    return torch.cat([call.tensor(k) for k in range(len(call.inputs))], call.attribute("axis"))


def _split(call: NodeCall) -> tuple[Tensor, ...]:
    value, axis = call.tensor(0), call.attribute("axis", 0)
    sizes = call.setting(1, "split")
    if sizes is None:
        parts = call.attribute("num_outputs", call.attribute("outputs"))
        return value.split(-(-value.shape[axis] // parts), axis)
    return value.split(_as_list(sizes), axis)


def _slice(call: NodeCall) -> Tensor:
    value = call.tensor(0)
    starts, ends = (_as_list(call.setting(k, n)) for k, n in ((1, "starts"), (2, "ends")))
    axes = _as_list(call.setting(3, "axes", list(range(len(starts)))))
    steps = _as_list(call.setting(4, "steps", [1] * len(starts)))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        value = _slice_dimension(value, slice(start, end, step), axis % value.dim())
    return value


def _slice_dimension(value: Tensor, part: slice, axis: int) -> Tensor:
    if part.step > 0:
        return value[(slice(None),) * axis + (part,)]
    kept = list(range(value.shape[axis]))[_backward_slice(part, value.shape[axis])]
    return value.index_select(axis, torch.tensor(kept, device=value.device))


def _backward_slice(part: slice, size: int) -> slice:
    """Return a slice for Python, in which an end before the first element is None."""
    return slice(part.start, None if part.stop < -size else part.stop, part.step)


def _gather(call: NodeCall) -> Tensor:
    value, index, axis = call.tensor(0), call.inputs[1], call.attribute("axis", 0)
    if not isinstance(index, Tensor | list):
        return value.select(axis, index)
    indices = _non_negative(call.tensor(1), value.shape[axis])
    if indices.dim() == 1:
        return value.index_select(axis, indices)
    axis %= value.dim()
    selected = value.index_select(axis, indices.flatten())
    return selected.reshape(*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :])


def _non_negative(index: Tensor, size: Any) -> Tensor:
    return torch.where(index < 0, index + size, index)


def _gather_elements(call: NodeCall) -> Tensor:
    value, axis = call.tensor(0), call.attribute("axis", 0)
    return value.gather(axis, _non_negative(call.tensor(1), value.shape[axis]))


def _gather_nd(call: NodeCall) -> Tensor:
    if call.attribute("batch_dims", 0):
        raise ModelError("GatherND with batch_dims is not supported in ONNX files")
    return call.tensor(0)[call.tensor(1).unbind(-1)]


def _scatter_nd(call: NodeCall) -> Tensor:
    if call.attribute("reduction", "none") != "none":
        raise ModelError("ScatterND with a reduction is not supported in ONNX files")
    return call.tensor(0).index_put(call.tensor(1).unbind(-1), call.tensor(2))


def _scatter_elements(call: NodeCall) -> Tensor:
    if call.attribute("reduction", "none") != "none":
        raise ModelError("ScatterElements with a reduction is not supported in ONNX files")
    value, axis = call.tensor(0), call.attribute("axis", 0)
    return value.scatter(axis, _non_negative(call.tensor(1), value.shape[axis]), call.tensor(2))


def _expand(call: NodeCall) -> Tensor:
    value, sizes = call.tensor(0), _as_list(call.setting(1, "shape"))
    # A size of one keeps the value's size, even if that is larger.
    old = [1] * (len(sizes) - value.dim()) + list(value.shape)
    sizes = old[: len(old) - len(sizes)] + list(sizes)
    return value.expand([n if _is_one(size) else size for n, size in zip(old, sizes, strict=True)])


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _pad(call: NodeCall) -> Tensor:
    value, pads = call.tensor(0), _as_list(call.setting(1, "pads"))
    axes = _as_list(call.setting(3, "axes", list(range(value.dim()))))
    fill = call.setting(2, "value", 0.0) or 0.0
    sides: dict[int, Sequence[int]] = {
        axis % value.dim(): (pads[k], pads[k + len(axes)]) for k, axis in enumerate(axes)
    }
    first = min((axis for axis, pad in sides.items() if any(pad)), default=value.dim())
    if call.attribute("mode", "constant") != "constant" and first < value.dim():
        first = min(first, 2)  # torch requires padding of all spatial dimensions, possibly zero
    torch_order = [
        n for axis in reversed(range(first, value.dim())) for n in sides.get(axis, (0, 0))
    ]
    mode = _PADDINGS[call.attribute("mode", "constant")]
    if not torch_order:
        return value
    return F.pad(value, torch_order, mode, fill if mode == "constant" else None)


def _constant_of_shape(call: NodeCall) -> Tensor:
    number = call.attribute("value", 0.0)
    dtype = call.images.dtype if isinstance(number, float) else None
    return torch.full(_as_list(call.setting(0, "")), number, dtype=dtype, device=call.images.device)


def _range(call: NodeCall) -> Tensor:
    return torch.arange(*(call.setting(k, "") for k in range(3)), device=call.images.device)


def _trilu(call: NodeCall) -> Tensor:
    diagonal = call.setting(1, "k", 0)
    upper = call.attribute("upper", 1)
    return call.tensor(0).triu(diagonal) if upper else call.tensor(0).tril(diagonal)


def _depth_to_space(call: NodeCall) -> Tensor:
    value, size = call.tensor(0), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":
        return F.pixel_shuffle(value, size)
    batch, channels, height, width = value.shape
    blocks = value.reshape(batch, size, size, channels // size**2, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(batch, -1, height * size, width * size)


def _space_to_depth(call: NodeCall) -> Tensor:
    value, size = call.tensor(0), call.attribute("blocksize")
    batch, channels, height, width = value.shape
    blocks = value.reshape(batch, channels, height // size, size, width // size, size)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // size, width // size)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


SHAPE_OPERATORS: Mapping[str, Implementation] = {
    "Shape": _shape,
    "Size": lambda call: call.tensor(0).numel(),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements,
    "Expand": _expand,
    "Tile": lambda call: call.tensor(0).tile(_as_list(call.setting(1, "repeats"))),
    "Pad": _pad,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Trilu": _trilu,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
