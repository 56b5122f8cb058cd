"""ONNX operators that are layers: convolutions, matrix products, attention, norms, softmax."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx.operators.call import Implementation, NodeCall
from dmbp.models.onnx.operators.pooling import pad_unevenly, sliding_windows

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED_CONVOLUTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _convolution(call: NodeCall) -> Tensor:
    activation, weight = call.tensor(0), call.tensor(1)
    window = sliding_windows(call, activation, weight.shape[2:])
    activation, padding = pad_unevenly(activation, window, fill=0.0)
    return _CONVOLUTIONS[weight.dim() - 2](
        activation,
        weight,
        call.optional_tensor(2),
        stride=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=call.attribute("group", 1),
    )


def _transposed_convolution(call: NodeCall) -> Tensor:
    weight = call.tensor(1)
    rank = weight.dim() - 2
    pads = call.attribute("pads") or [0] * 2 * rank
    is_plain = pads[:rank] == pads[rank:] and "output_shape" not in call.attributes
    if not is_plain or call.attribute("auto_pad", "NOTSET") != "NOTSET":
        raise ModelError(
            "ConvTranspose is supported in ONNX files only with equal padding on both sides and "
            "without output_shape or auto_pad"
        )
    return _TRANSPOSED_CONVOLUTIONS[rank](
        call.tensor(0),
        weight,
        call.optional_tensor(2),
        stride=call.attribute("strides") or 1,
        padding=pads[:rank],
        output_padding=call.attribute("output_padding") or 0,
        groups=call.attribute("group", 1),
        dilation=call.attribute("dilations") or 1,
    )


def _gemm(call: NodeCall) -> Tensor:
    first, second, bias = call.tensor(0), call.tensor(1), call.optional_tensor(2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    first = first.t() if call.attribute("transA", 0) else first
    second = second if call.attribute("transB", 0) else second.t()
    if alpha == 1 and (bias is None or (beta == 1 and bias.dim() == 1)):
        return F.linear(first, second, bias)
    product = alpha * F.linear(first, second)
    return product if bias is None else product + beta * bias


def _matmul(call: NodeCall) -> Tensor:
    first, second = call.tensor(0), call.tensor(1)
    # A matrix is a layer's weight; two operands with a batch dimension are activations.
    is_layer = second.dim() == 2 and first.dim() >= 2
    return F.linear(first, second.t()) if is_layer else torch.matmul(first, second)


def _attention(call: NodeCall) -> Tensor:
    query, key, values = (call.tensor(k) for k in range(3))
    if query.dim() != 4 or any(call.has_input(k) for k in (4, 5)) or call.attribute("softcap", 0.0):
        raise ModelError(
            "Attention is supported in ONNX files only on four dimensions, without past keys and "
            "values and without softcap"
        )
    return F.scaled_dot_product_attention(
        query,
        key,
        values,
        attn_mask=call.optional_tensor(3),
        is_causal=bool(call.attribute("is_causal", 0)),
        scale=call.attribute("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _short_time_fourier_transform(call: NodeCall) -> Tensor:
    """Return (batch, frames, bins, 2), real and imaginary parts, as products with a matrix."""
    signal, window = call.tensor(0), call.optional_tensor(2)
    if signal.dim() == 3 and signal.shape[-1] != 1:
        raise ModelError("STFT of complex signals is not supported in ONNX files")
    length = int(call.setting(3, "") or (0 if window is None else len(window)))
    frames = signal.reshape(*signal.shape[:2]).unfold(-1, length, int(call.setting(1, "")))
    frames = frames if window is None else frames * window
    bins = length // 2 + 1 if call.attribute("onesided", 1) else length
    moments = torch.arange(length, device=signal.device)
    # The product is reduced as a whole number, because a large angle would have few digits left.
    steps = torch.outer(moments, moments[:bins]) % length
    angles = steps.to(torch.float64) * (2 * math.pi / length)
    waves = torch.stack([angles.cos(), -angles.sin()], -1).to(signal.dtype)
    return (frames @ waves.flatten(1)).unflatten(-1, (bins, 2))


LAYERS: Mapping[str, Implementation] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Einsum": lambda call: torch.einsum(
        call.attribute("equation"), *(call.tensor(k) for k in range(len(call.inputs)))
    ),
    "Attention": _attention,
    "STFT": _short_time_fourier_transform,
}


def _batch_norm(call: NodeCall) -> Tensor:
    if call.attribute("training_mode", 0):
        raise ModelError("the ONNX file was exported in training mode: export model.eval()")
    activation, weight, bias, mean, variance = (call.tensor(k) for k in range(5))
    epsilon = call.attribute("epsilon", 1e-5)
    return F.batch_norm(activation, mean, variance, weight, bias, False, 0.0, epsilon)


def _layer_norm(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    shape = list(activation.shape)[call.attribute("axis", -1) :]
    return F.layer_norm(
        activation, shape, call.tensor(1), call.optional_tensor(2), call.attribute("epsilon", 1e-5)
    )


def _rms_norm(call: NodeCall) -> Tensor:
    activation = call.tensor(0)
    shape = list(activation.shape)[call.attribute("axis", -1) :]
    return F.rms_norm(activation, shape, call.tensor(1), call.attribute("epsilon", 1e-5))


def _group_norm(call: NodeCall) -> Tensor:
    activation, weight, bias = (call.tensor(k) for k in range(3))
    groups, channels = call.attribute("num_groups"), activation.shape[1]
    if call.version < 21:  # older sets have a scale and bias per group, newer ones per channel
        repeats = channels // groups
        weight, bias = (tensor.repeat_interleave(repeats) for tensor in (weight, bias))
    return F.group_norm(activation, groups, weight, bias, call.attribute("epsilon", 1e-5))


def _instance_norm(call: NodeCall) -> Tensor:
    activation, weight, bias = (call.tensor(k) for k in range(3))
    epsilon = call.attribute("epsilon", 1e-5)
    return F.instance_norm(activation, weight=weight, bias=bias, eps=epsilon)


def _local_response_norm(call: NodeCall) -> Tensor:
    size, alpha = call.attribute("size"), call.attribute("alpha", 1e-4)
    beta, bias = call.attribute("beta", 0.75), call.attribute("bias", 1.0)
    if size % 2:
        return F.local_response_norm(call.tensor(0), size, alpha, beta, bias)
    # A window of even size has its extra channel before the centre in torch, after it in ONNX.
    flipped = call.tensor(0).flip(1)
    return F.local_response_norm(flipped, size, alpha, beta, bias).flip(1)


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Implementation:
    def implementation(call: NodeCall) -> Tensor:
        activation = call.tensor(0)
        if call.version >= 13:
            return function(activation, call.attribute("axis", -1))
        axis = call.attribute("axis", 1)  # older sets flatten all dimensions from the axis on
        return function(activation.flatten(axis), -1).reshape(activation.shape)

    return implementation


NORMALISATIONS: Mapping[str, Implementation] = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _local_response_norm,
    "LpNormalization": lambda call: F.normalize(
        call.tensor(0), call.attribute("p", 2), call.attribute("axis", -1)
    ),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
}
