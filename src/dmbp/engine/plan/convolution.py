"""Convolutions of a linear network: forward on both streams, transposed on one or both.

On a CPU in single precision, oneDNN is called with weights that are packed once in its memory
order; PyTorch's own convolution packs them again at every call. Measured on two cores, all
convolutions of an iteration take 92 + 48 ms (forward + transposed) against 137 + 68 ms for
ResNet50, and 11 + 6 ms against 30 + 10 ms for a small network at 160 × 160, where PyTorch falls
back on a slower kernel.

On a GPU a 1 × 1 convolution is a matrix product. The transpose of a convolution with stride one is
a convolution with the kernel flipped, and runs the same way. GPUs have no good kernel
for the transpose of a convolution that reads the few channels of an image; it runs as a matrix
product whose columns are folded. In single precision a back end may provide faster implementations
through `Kernels`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import fold

from dmbp.engine.plan.kernels import ConvolutionSettings, Kernels, RunConvolution

aten = torch.ops.aten

CHANNELS_LAST = torch.channels_last

FEW_CHANNELS = 4
"""Inputs with at most this many channels are images: grey, RGB, or RGB with a fourth channel."""


class Convolution:
    """The convolution y = W ∗ x + b and its transpose.

    Each direction is prepared when it first runs, or by `prepare`. `example` has the shape of one
    stream's input.
    """

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
        kernels: Kernels,
    ) -> None:
        self._stored_weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._example = example
        self._kernels = kernels
        self.settings: ConvolutionSettings = (stride, padding, dilation, groups)
        self.is_biased = bias is not None

    @cached_property
    def weight(self) -> Tensor:
        """The weight in channels-last order."""
        # Replace the stored weight, so that only one copy stays in memory.
        self._stored_weight = self._stored_weight.contiguous(memory_format=CHANNELS_LAST)
        return self._stored_weight

    @cached_property
    def _forward(self) -> RunConvolution:
        both = (2 * len(self._example), *self._example.shape[1:])
        weight = self._stored_weight if can_pack(self._stored_weight) else self.weight
        return _runner(weight, self._bias, self.settings, both, self._kernels)

    @cached_property
    def _backward(self) -> RunConvolution | None:
        """The transpose as a kernel, matrix product or convolution; None if none applies."""
        example, (stride, _, _, groups) = self._example, self.settings
        to_image = example.is_cuda and example.shape[1] <= FEW_CHANNELS and groups == 1
        if to_image or stride != [1, 1]:
            run = self._kernels.transposed_convolution(
                self._stored_weight, self.settings, self.input_size
            )
            if run is not None:
                return run
        if to_image:
            return folded_transpose(self._stored_weight, self.settings, self.input_size)
        return self._flipped(self._stored_weight, example)

    def prepare(self, *, forward: bool = True, transpose: bool = True) -> None:
        """Prepare the weights for one direction or both."""
        if forward:
            _ = self._forward
        if transpose and self._backward is None:
            _ = self.weight

    @property
    def input_size(self) -> tuple[int, ...]:
        """Height and width of the input."""
        return tuple(self._example.shape[2:])

    def forward(self, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve both streams' rows, and multiply the result by a mask if one is passed."""
        return self._forward(activation, mask)

    def transpose(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the input from that with respect to the output."""
        if self._backward is not None:
            return self._backward(gradient, None)
        stride, padding, dilation, groups = self.settings
        like = torch.empty(
            (len(gradient), *self._example.shape[1:]),
            dtype=gradient.dtype,
            device=gradient.device,
            memory_format=CHANNELS_LAST,
        )
        return aten.convolution_backward(
            gradient,
            like,
            self.weight,
            None,
            stride,
            padding,
            dilation,
            False,
            [0, 0],
            groups,
            [True, False, False],
        )[0]

    def _flipped(self, weight: Tensor, example: Tensor) -> RunConvolution | None:
        """Return the transpose as a convolution if it is one and that is faster, else None."""
        flipped = flipped_settings(weight.shape[2:], self.settings)
        if flipped is None or not (can_pack(example) or example.device.type == "cuda"):
            return None
        size = result_size(self.input_size, weight.shape[2:], self.settings)
        shape = (len(example), weight.shape[0], *size)
        return _runner(flip(weight), None, flipped, shape, self._kernels)


def folded_transpose(
    weight: Tensor, settings: ConvolutionSettings, input_size: tuple[int, ...]
) -> RunConvolution:
    """Return a convolution's transpose as a matrix product whose columns are folded.

    Grouped convolutions are not supported.
    """
    stride, padding, dilation, _ = settings
    matrix = weight.flatten(1).T.contiguous()
    window = tuple(weight.shape[2:])

    def run(gradient: Tensor, _: Tensor | None) -> Tensor:
        columns = matrix @ gradient.flatten(2)
        return fold(columns, input_size, window, tuple(dilation), tuple(padding), tuple(stride))

    return run


def result_size(
    size: Sequence[int], kernel: Sequence[int], settings: ConvolutionSettings
) -> tuple[int, int]:
    """Return the height and width of an undilated convolution's result."""
    stride, padding, _, _ = settings
    height, width = (
        (side + 2 * p - k) // s + 1
        for side, k, s, p in zip(size, kernel, stride, padding, strict=True)
    )
    return height, width


def flipped_settings(
    kernel: Sequence[int], settings: ConvolutionSettings
) -> ConvolutionSettings | None:
    """Return the settings of a convolution's transpose, or None if that is not a convolution.

    Dilated and grouped convolutions are not supported and give None as well.
    """
    stride, padding, dilation, groups = settings
    flipped_padding = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
    if stride != [1, 1] or dilation != [1, 1] or groups != 1 or min(flipped_padding) < 0:
        return None
    return [1, 1], flipped_padding, [1, 1], 1


def flip(weight: Tensor) -> Tensor:
    """Return the weight of a convolution's transpose: flipped, with its channels swapped."""
    flipped = weight if tuple(weight.shape[2:]) == (1, 1) else weight.flip(2, 3)
    order = CHANNELS_LAST if weight.is_cuda else torch.contiguous_format
    return flipped.transpose(0, 1).contiguous(memory_format=order)


def _runner(
    weight: Tensor,
    bias: Tensor | None,
    settings: ConvolutionSettings,
    shape: tuple[int, ...],
    kernels: Kernels,
) -> RunConvolution:
    """Return the fastest implementation of a convolution of inputs of `shape`."""
    stride, padding, _, groups = settings
    if can_pack(weight):
        return _packed(weight, bias, settings, shape)
    is_pointwise = tuple(weight.shape[2:]) == (1, 1) and stride == [1, 1] and padding == [0, 0]
    if is_pointwise and groups == 1 and weight.device.type == "cuda":
        return _product(weight, bias, kernels)
    return kernels.convolution(weight, bias, settings) or _plain(weight, bias, settings)


def _packed(
    weight: Tensor, bias: Tensor | None, settings: Any, shape: tuple[int, ...]
) -> RunConvolution:
    """Return oneDNN's convolution with weights packed for inputs of `shape`."""
    stride, padding, dilation, groups = settings
    packed = packed_weight(weight, settings, shape)
    onednn = torch.ops.mkldnn._convolution_pointwise
    options = (padding, stride, dilation, groups)

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        # oneDNN 3.10, in torch 2.11, fails to multiply results of a single pixel or channel.
        if mask is None or mask.shape[1] == 1 or mask.shape[2:] == (1, 1):
            result = onednn(activation, packed, bias, *options, "none", [], "")
            return result if mask is None else result.mul_(mask)
        return onednn.binary(activation, mask, packed, bias, *options, "mul", None, None, [], None)

    return run


def packed_weight(weight: Tensor, settings: ConvolutionSettings, shape: tuple[int, ...]) -> Tensor:
    """Return a weight in the memory order that oneDNN prefers for inputs of `shape`.

    Inputs with other batch sizes or sides are convolved correctly too, possibly more slowly.
    """
    stride, padding, dilation, groups = settings
    return aten.mkldnn_reorder_conv2d_weight(
        weight.to_mkldnn(), padding, stride, dilation, groups, list(shape)
    )


def _product(weight: Tensor, bias: Tensor | None, kernels: Kernels) -> RunConvolution:
    """Return a 1 × 1 convolution as a matrix product."""
    multiply = kernels.product(weight.flatten(1).contiguous(), bias)

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        result = multiply(activation.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return result if mask is None else result.mul_(mask)

    return run


def _plain(weight: Tensor, bias: Tensor | None, settings: ConvolutionSettings) -> RunConvolution:
    """Return PyTorch's own convolution."""
    weight = weight.contiguous(memory_format=CHANNELS_LAST)

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        result = torch.conv2d(activation, weight, bias, *settings)
        return result if mask is None else result.mul_(mask)

    return run


def can_pack(like: Tensor) -> bool:
    """Return whether oneDNN supports packed weights for tensors of this device and dtype."""
    return like.device.type == "cpu" and like.dtype == torch.float32 and has_packed_weights()


def has_packed_weights() -> bool:
    """Return whether oneDNN is available and enabled, and this PyTorch can pack weights for it."""
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
        and hasattr(aten, "mkldnn_reorder_conv2d_weight")
    )
