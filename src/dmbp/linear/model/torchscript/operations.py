"""What TorchScript's own operations do, as Python functions.

An operation on tensors is called by its name in `torch.ops`. The others, which compute with
numbers, lists, strings and sizes, are written out here, because torch's own versions do not accept
the symbolic sizes with which `torch.export` runs a model.

    >>> OPERATIONS["aten::floordiv"](7, 2)
    3

A traced program turns sizes into tensors (`prim::NumToTensor`) and computes with these. Here they
stay numbers, and `NUMBERS` says what an operation on tensors does to numbers.
"""

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from dmbp.errors import CaptureError

Function = Callable[..., Any]

DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.bool),
    *(torch.qint8, torch.quint8, torch.qint32, torch.bfloat16),
)
"""Dtypes by the number that stands for them in a program."""


def operate(kind: str, overload: str, keywords: tuple[str, ...], *arguments: Any) -> Any:
    """Run an operation.

    Args:
        kind: Its name, such as `aten::add`.
        overload: The name of its overload, such as `Tensor`.
        keywords: The names of its last arguments, if they can only be given by name.
        arguments: Its arguments, in order.

    Raises:
        CaptureError: If there is no such operation.
    """
    function = OPERATIONS.get(f"{kind}.{overload}") or OPERATIONS.get(kind)
    if function is None and not any(isinstance(leaf, Tensor) for leaf in tree_leaves(arguments)):
        function = NUMBERS.get(kind)
    if function is not None:
        return function(*arguments)
    positional = arguments[: len(arguments) - len(keywords)]
    named = dict(zip(keywords, arguments[len(positional) :], strict=True))
    try:
        return torch_operation(kind, overload)(*positional, **named)
    except RuntimeError as error:
        if "Expected a value of type" not in str(error):
            raise
        raise _unknown(kind) from error  # it mixes numbers and tensors in a way not known here


@cache
def torch_operation(kind: str, overload: str) -> Any:
    """Return an operation of `torch.ops`."""
    namespace, _, name = kind.partition("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError as error:
        raise _unknown(kind) from error


def _unknown(kind: str) -> CaptureError:
    return CaptureError(
        f"the TorchScript program runs {kind}, which torch.export cannot follow; explain the "
        "nn.Module that the program was made from"
    )


def _integer(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _integer(value.item())
    return value if isinstance(value, SymInt) else torch.sym_int(value)


def _real(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _real(value.item())
    return value if isinstance(value, SymFloat) else torch.sym_float(value)


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _size(tensor: Tensor, dimension: int | None = None) -> Any:
    return list(tensor.shape) if dimension is None else tensor.shape[dimension]


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) else len(value)


def _tensor(data: Any, dtype: int | None, device: Any, *_: Any) -> Tensor:
    return torch.as_tensor(data, dtype=None if dtype is None else DTYPES[dtype], device=device)


def _set_item(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


def _extend(items: list[Any], more: list[Any]) -> list[Any]:
    items.extend(more)
    return items


def _slice(items: Any, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return items[start:end:step]


def _range_length(start: Any, end: Any, step: Any) -> Any:
    return torch.sym_max(0, (end - start + step - (1 if step > 0 else -1)) // step)


def _raise(message: str, kind: str | None = None) -> None:
    raise RuntimeError(message if kind is None else f"{kind}: {message}")


def _format(template: str, *values: Any) -> str:
    return template.format(*values)


def _nothing(*_: Any) -> None:
    """Do nothing, in place of printing and warning."""


def _same(value: Any, *_: Any) -> Any:
    return value


def _convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, *_: Any,
) -> Tensor:  # fmt: skip
    """Call the convolution of the right dimension, as the traced module did."""
    if transposed:
        function: Any = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
        return function[x.dim() - 3](
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    function = (torch.conv1d, torch.conv2d, torch.conv3d)
    return function[x.dim() - 3](x, weight, bias, stride, padding, dilation, groups)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, embedding: int, heads: int, in_weight: Tensor,
    in_bias: Tensor, out_weight: Tensor, out_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run PyTorch's attention for inference by the operations that it stands for."""
    query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    attended, weights = functional.multi_head_attention_forward(
        query, key, value, embedding, heads, in_weight, in_bias, None, None, False, 0.0,
        out_weight, out_bias, training=False, need_weights=need_weights,
        key_padding_mask=mask if mask_type == 1 else None,
        attn_mask=None if mask_type == 1 else mask, average_attn_weights=average,
    )  # fmt: skip
    return attended.transpose(0, 1), weights


def _encoder_layer(
    x: Tensor, embedding: int, heads: int, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor,
    out_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight: Tensor,
    norm_bias: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor, weight: Tensor, bias: Tensor,
    weight_2: Tensor, bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Run PyTorch's encoder layer for inference by the operations that it stands for."""
    activation = functional.gelu if use_gelu else functional.relu

    def attend(z: Tensor) -> Tensor:
        weights = (in_weight, in_bias, out_weight, out_bias)
        return _attention(z, z, z, embedding, heads, *weights, mask, False, True, mask_type)[0]

    def feed_forward(z: Tensor) -> Tensor:
        hidden = activation(functional.linear(z, weight, bias))
        return functional.linear(hidden, weight_2, bias_2)

    def norm(z: Tensor) -> Tensor:
        return functional.layer_norm(z, (embedding,), norm_weight, norm_bias, eps)

    def norm_2(z: Tensor) -> Tensor:
        return functional.layer_norm(z, (embedding,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(norm(x))
        return x + feed_forward(norm_2(x))
    x = norm(x + attend(x))
    return norm_2(x + feed_forward(x))


OPERATIONS: Mapping[str, Function] = {
    # values
    "prim::unchecked_cast": _same,
    "prim::unchecked_unwrap_optional": _same,
    "aten::_unwrap_optional": _same,
    "prim::NumToTensor": _same,
    "prim::Uninitialized": _nothing,
    "prim::ListConstruct": lambda *items: list(items),
    "prim::DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "prim::TupleIndex": operator.getitem,
    # lists, dictionaries and strings
    "aten::len": _length,
    "aten::__getitem__": operator.getitem,
    "aten::_set_item": _set_item,
    "aten::append": _append,
    "aten::extend": _extend,
    "aten::list": list,
    "aten::copy.t": list,
    "aten::dict": dict,
    "aten::keys": lambda items: list(items.keys()),
    "aten::values": lambda items: list(items.values()),
    "aten::items": lambda items: list(items.items()),
    "aten::get": lambda items, key, default=None: items.get(key, default),
    "aten::__contains__": lambda items, key: key in items,
    "aten::format": _format,
    "aten::str": str,
    "aten::slice.t": _slice,
    "aten::slice.str": _slice,
    "aten::add.t": operator.add,
    "aten::add.str": operator.add,
    "aten::mul.left_t": operator.mul,
    "aten::mul.right_": operator.mul,
    # comparisons and truth values
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__not__": operator.not_,
    "aten::Bool": bool,
    # numbers
    "aten::Int": _integer,
    "aten::IntImplicit": _integer,
    "aten::Float": _real,
    "aten::FloatImplicit": _real,
    "aten::ScalarImplicit": _item,
    "aten::item": _item,
    "aten::floordiv": operator.floordiv,
    "aten::sqrt.int": math.sqrt,
    "aten::sqrt.float": math.sqrt,
    "aten::floor.float": math.floor,
    "aten::ceil.float": math.ceil,
    "aten::log.int": math.log,
    "aten::log.float": math.log,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "prim::min": torch.sym_min,
    "prim::max": torch.sym_max,
    "prim::abs": abs,
    # what a tensor is
    "aten::size": _size,
    "aten::dim": lambda tensor: tensor.dim(),
    "aten::numel": lambda tensor: tensor.numel(),
    "aten::is_floating_point": lambda tensor: tensor.is_floating_point(),
    "aten::is_complex": lambda tensor: tensor.is_complex(),
    "prim::device": lambda tensor: tensor.device,
    "prim::dtype": lambda tensor: DTYPES.index(tensor.dtype),
    # PyTorch's transformers take a fused operation for inference unless a gradient is needed.
    "aten::is_grad_enabled": lambda: True,
    "prim::requires_grad": lambda _: True,
    "prim::is_cuda": lambda tensor: tensor.is_cuda,
    "prim::is_sparse": lambda tensor: tensor.is_sparse,
    "prim::is_quantized": lambda tensor: tensor.is_quantized,
    "prim::is_mkldnn": lambda tensor: tensor.is_mkldnn,
    "prim::tolist": lambda tensor, *_: tensor.tolist(),
    "aten::tensor": _tensor,
    "aten::as_tensor": _tensor,
    # messages
    "prim::RaiseException": _raise,
    "prim::Print": _nothing,
    "aten::warn": _nothing,
    # operations on tensors that torch's Python functions call in another way
    "aten::_convolution": _convolution,
    "aten::batch_norm": torch.batch_norm,
    "aten::_native_multi_head_attention": _attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
}
"""Functions by an operation's name, with its overload or without."""

NUMBERS: Mapping[str, Function] = {
    "aten::add": lambda a, b, alpha=1: a + b * alpha,
    "aten::sub": lambda a, b, alpha=1: a - b * alpha,
    "aten::rsub": lambda a, b, alpha=1: b - a * alpha,
    "aten::mul": operator.mul,
    "aten::div": lambda a, b, rounding_mode=None: a // b if rounding_mode else a / b,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::abs": abs,
    "aten::floor": math.floor,
    "aten::ceil": math.ceil,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": lambda a, b: a and b,
    "aten::__or__": lambda a, b: a or b,
    "aten::__xor__": operator.xor,
    "aten::detach": _same,
    "aten::to": _same,
}
"""What an operation does if no argument is a tensor, by its name without the overload."""
