"""Layers with weights, products of activations, and attention."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Row
from dmbp.models.onnx_files.windows import padded, windows

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _convolution(call: Call) -> Tensor:
    activation, weight = call.tensor(0), call.tensor(1)
    window = windows(call, activation, weight.shape[2:])
    activation, padding = padded(activation, window, fill=0.0)
    return _CONVOLUTIONS[weight.dim() - 2](
        activation,
        weight,
        call.optional(2),
        stride=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=call.attribute("group", 1),
    )


def _transposed_convolution(call: Call) -> Tensor:
    weight = call.tensor(1)
    rank = weight.dim() - 2
    pads = call.attribute("pads") or [0] * 2 * rank
    is_plain = pads[:rank] == pads[rank:] and "output_shape" not in call.attributes
    if not is_plain or call.attribute("auto_pad", "NOTSET") != "NOTSET":
        raise ModelError("ConvTranspose of an ONNX file is supported with equal padding only")
    return _TRANSPOSED[rank](
        call.tensor(0),
        weight,
        call.optional(2),
        stride=call.attribute("strides") or 1,
        padding=pads[:rank],
        output_padding=call.attribute("output_padding") or 0,
        groups=call.attribute("group", 1),
        dilation=call.attribute("dilations") or 1,
    )


def _gemm(call: Call) -> Tensor:
    first, second, bias = call.tensor(0), call.tensor(1), call.optional(2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    first = first.t() if call.attribute("transA", 0) else first
    second = second if call.attribute("transB", 0) else second.t()
    if alpha == 1 and (bias is None or (beta == 1 and bias.dim() == 1)):
        return F.linear(first, second, bias)
    product = alpha * F.linear(first, second)
    return product if bias is None else product + beta * bias


def _product(call: Call) -> Tensor:
    first, second = call.tensor(0), call.tensor(1)
    # A matrix is a layer's weight; what both have a batch are activations.
    is_layer = second.dim() == 2 and first.dim() >= 2
    return F.linear(first, second.t()) if is_layer else torch.matmul(first, second)


def _attention(call: Call) -> Tensor:
    query, key, values = (call.tensor(k) for k in range(3))
    if query.dim() != 4 or any(call.given(k) for k in (4, 5)) or call.attribute("softcap", 0.0):
        raise ModelError("Attention of an ONNX file is supported on four dimensions only, plain")
    return F.scaled_dot_product_attention(
        query,
        key,
        values,
        attn_mask=call.optional(3),
        is_causal=bool(call.attribute("is_causal", 0)),
        scale=call.attribute("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )


LAYERS: Mapping[str, Row] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _product,
    "Einsum": lambda call: torch.einsum(
        call.attribute("equation"), *(call.tensor(k) for k in range(len(call.inputs)))
    ),
    "Attention": _attention,
}
