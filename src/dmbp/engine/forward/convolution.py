"""Convolutions that add a residual and apply an activation before they write their result.

    activation(W ∗ x + b + residual)                    the residual and the activation are optional

On a CPU these are oneDNN's, with weights that are packed once; on a GPU they are cuDNN's, for
16-bit tensors with channels last. Without them a residual block writes and reads its activations
three times: after the convolution, after the sum and after the ReLU. PyTorch's own convolution
also adds its bias in a separate pass on a GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dmbp.engine.plan.convolution import CHANNELS_LAST, has_packed_weights, packed_weight
from dmbp.engine.plan.kernels import ConvolutionSettings
from dmbp.linear.rules.base import Function

aten = torch.ops.aten

RELU = "aten.relu.default"


@dataclass(frozen=True)
class ConvolutionLayer:
    """A convolution with constant weights, for inputs of shape `input_shape`."""

    weight: Tensor
    bias: Tensor | None
    settings: ConvolutionSettings
    input_shape: tuple[int, ...]


@dataclass(frozen=True)
class Epilogue:
    """What is computed after a convolution: a sum with a residual, then an activation.

    `activation` is an operation's name, or None, and `arguments` are those after the activation's
    input.
    """

    adds_residual: bool = False
    activation: str | None = None
    arguments: tuple[Any, ...] = ()


Fuse = Callable[[ConvolutionLayer, Epilogue], Function | None]
"""Returns a function of the input, and of the residual if there is one, or None if there is no
such function for this layer and epilogue."""


def _clip(low: float = -1.0, high: float = 1.0) -> tuple[str, list[float]]:
    return "hardtanh", [float(low), float(high)]


def _leaky(slope: float = 0.01) -> tuple[str, list[float]]:
    return "leaky_relu", [float(slope)]


ONEDNN_ACTIVATIONS: Mapping[str, Callable[..., tuple[str, list[float]]]] = {
    RELU: lambda: ("relu", []),
    "aten.relu6.default": lambda: _clip(0.0, 6.0),
    "aten.hardtanh.default": _clip,
    "aten.leaky_relu.default": _leaky,
    "aten.silu.default": lambda: ("swish", []),
    "aten.hardswish.default": lambda: ("hardswish", []),
}
"""oneDNN's name and numbers of each activation that it can apply to a convolution's result, as a
function of the activation's arguments."""


def fuse_onednn(layer: ConvolutionLayer, epilogue: Epilogue) -> Function | None:
    """Return oneDNN's convolution with packed weights; after a sum, the one activation is ReLU."""
    if not has_onednn(layer.weight.device, layer.weight.dtype):
        return None
    stride, padding, dilation, groups = layer.settings
    onednn = torch.ops.mkldnn._convolution_pointwise
    bias, options = layer.bias, (padding, stride, dilation, groups)

    if epilogue.adds_residual:
        if epilogue.activation not in (None, RELU):
            return None
        relu = None if epilogue.activation is None else "relu"
        weight = packed_weight(layer.weight, layer.settings, layer.input_shape)

        def convolve_and_add(x: Tensor, residual: Tensor) -> Tensor:
            if residual.shape[2:] == (1, 1):  # oneDNN 3.10, in torch 2.11, fails on single pixels
                result = onednn(x, weight, bias, *options, "none", [], "").add_(residual)
                return result if relu is None else result.relu_()
            after = ("add", None, relu, [], None)
            return onednn.binary(x, residual, weight, bias, *options, *after)

        return convolve_and_add

    name, numbers = "none", list[float]()
    if epilogue.activation is not None:
        if epilogue.activation not in ONEDNN_ACTIVATIONS:
            return None
        name, numbers = ONEDNN_ACTIVATIONS[epilogue.activation](*epilogue.arguments)
    weight = packed_weight(layer.weight, layer.settings, layer.input_shape)

    def convolve(x: Tensor) -> Tensor:
        return onednn(x, weight, bias, *options, name, numbers, "")

    return convolve


def has_onednn(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether oneDNN convolves tensors of this device and dtype at full speed.

    Without instructions for bfloat16, it would convert everything to float32 and back.
    """
    is_native = dtype == torch.float32 or (dtype == torch.bfloat16 and _has_bfloat16())
    return device.type == "cpu" and is_native and has_packed_weights()


@cache
def _has_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


def fuse_cudnn(layer: ConvolutionLayer, epilogue: Epilogue) -> Function | None:
    """Return cuDNN's convolution with a ReLU; any other convolution is left to PyTorch.

    Once cuDNN has no kernel for an input, PyTorch's operations run one after another.
    """
    stride, padding, dilation, groups = layer.settings
    if epilogue.activation != RELU or groups != 1 or not has_cudnn():
        return None
    weight, bias = layer.weight.contiguous(memory_format=CHANNELS_LAST), layer.bias
    options = (stride, padding, dilation, groups)

    if epilogue.adds_residual:

        def convolve_and_add(x: Tensor, residual: Tensor) -> Tensor:
            return aten.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *options)

        def one_by_one(x: Tensor, residual: Tensor) -> Tensor:
            return torch.conv2d(x, weight, bias, *options).add_(residual).relu_()

        return _first_that_runs(convolve_and_add, one_by_one)

    def convolve(x: Tensor) -> Tensor:
        return aten.cudnn_convolution_relu(x, weight, bias, *options)

    def convolve_and_clip(x: Tensor) -> Tensor:
        return torch.conv2d(x, weight, bias, *options).relu_()

    return _first_that_runs(convolve, convolve_and_clip)


def _first_that_runs(function: Function, alternative: Function) -> Function:
    """Return a function that runs `function`, and after its first error `alternative`."""
    runs = True

    def run(*arguments: Tensor) -> Tensor:
        nonlocal runs
        if runs:
            try:
                return function(*arguments)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                runs = False
        return alternative(*arguments)

    return run


def has_cudnn() -> bool:
    """Return whether this PyTorch has cuDNN's fused convolutions."""
    return (
        torch.backends.cudnn.is_available()
        and torch.backends.cudnn.enabled
        and torch.version.hip is None
        and hasattr(aten, "cudnn_convolution_relu")
        and hasattr(aten, "cudnn_convolution_add_relu")
    )
