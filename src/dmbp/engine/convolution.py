"""Convolutions of a linear network: forward on both streams, transposed on one.

On the CPU in single precision oneDNN is called with weights it has packed once, in its own order,
which PyTorch's own convolution does anew at every call. The transposed convolution of stride one is
a convolution with the kernel flipped, and runs the same way. Measured on two cores, all
convolutions of an iteration: 92 + 48 ms against 137 + 68 ms for ResNet50, 11 + 6 against 30 + 10
for a small network at 160 × 160, where PyTorch falls back on a slower kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

CHANNELS_LAST = torch.channels_last


class Convolution:
    """y = W ∗ x + b, and its transpose."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        *,
        example: Tensor,
        rows: int,
    ) -> None:
        self._weight = weight.detach().contiguous(memory_format=CHANNELS_LAST)
        self._bias = None if bias is None else bias.detach()
        self._settings = (stride, padding, dilation, groups)
        self._input_shape = (rows, *example.shape[1:])
        self._like = example
        self._forward = self._packed(weight, self._bias, self._settings, tuple(example.shape))
        self._backward = self._flipped(weight, stride, padding, dilation, groups)

    def forward(self, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        """The convolution of both streams' rows, times a mask where one is given."""
        if self._forward is not None:
            return self._forward(activation, mask)
        result = torch.conv2d(activation, self._weight, self._bias, *self._settings)
        return result if mask is None else result.mul_(mask)

    def transpose(self, gradient: Tensor) -> Tensor:
        """The gradient in the input, from that in the output of one stream's rows."""
        if self._backward is not None:
            return self._backward(gradient, None)
        stride, padding, dilation, groups = self._settings
        like = torch.empty(
            self._input_shape, dtype=gradient.dtype, device=gradient.device
        ).contiguous(memory_format=CHANNELS_LAST)
        return aten.convolution_backward(
            gradient,
            like,
            self._weight,
            None,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            groups,
            [True, False, False],
        )[0]

    def _flipped(
        self,
        weight: Tensor,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
    ) -> Callable[[Tensor, Tensor | None], Tensor] | None:
        """The transpose as a convolution, where it is one."""
        kernel = list(weight.shape[2:])
        around = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
        if stride != [1, 1] or dilation != [1, 1] or groups != 1 or min(around) < 0:
            return None
        flipped = weight.detach().flip(2, 3).transpose(0, 1).contiguous()
        height, width = (
            side + 2 * p - k + 1
            for side, p, k in zip(self._input_shape[2:], padding, kernel, strict=True)
        )
        shape = (self._input_shape[0], weight.shape[0], height, width)
        return self._packed(flipped, None, ([1, 1], around, [1, 1], 1), shape)

    def _packed(
        self, weight: Tensor, bias: Tensor | None, settings: Any, shape: tuple[int, ...]
    ) -> Callable[[Tensor, Tensor | None], Tensor] | None:
        """The call of oneDNN with weights packed for inputs of `shape`; None where it has none."""
        if not can_pack(self._like):
            return None
        stride, padding, dilation, groups = settings
        packed = aten.mkldnn_reorder_conv2d_weight(
            weight.detach().to_mkldnn(), padding, stride, dilation, groups, list(shape)
        )
        onednn = torch.ops.mkldnn._convolution_pointwise
        last = (padding, stride, dilation, groups)

        def run(activation: Tensor, mask: Tensor | None) -> Tensor:
            if mask is None:
                return onednn(activation, packed, bias, *last, "none", [], "")
            return onednn.binary(activation, mask, packed, bias, *last, "mul", None, None, [], None)

        return run


def can_pack(like: Tensor) -> bool:
    """Whether oneDNN's convolution with packed weights is there for such a tensor."""
    return (
        like.device.type == "cpu"
        and like.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
        and hasattr(aten, "mkldnn_reorder_conv2d_weight")
    )
