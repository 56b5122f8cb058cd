"""Convolutions of a linear network: forward on both streams, transposed on one or both.

On the CPU in single precision oneDNN is called with weights it has packed once, in its own order,
which PyTorch's own convolution does anew at every call. Measured on two cores, all convolutions of
an iteration: 92 + 48 ms against 137 + 68 ms for ResNet50, 11 + 6 against 30 + 10 for a small
network at 160 × 160, where PyTorch falls back on a slower kernel. On a GPU a convolution of 1 × 1
is a matrix product. The transpose at stride one is a convolution with the kernel flipped, and runs
the same way; to the few channels of an image, for which GPUs have no good kernel, it is a product
whose columns are folded together. In single precision GPUs have paths of their own for 3 × 3
(`triton_winograd`) and for transposes with a stride (`triton_columns`).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import fold

from dmbp.engine.plan.gates import has_triton
from dmbp.engine.plan.streams import channels_last

aten = torch.ops.aten

CHANNELS_LAST = torch.channels_last

FEW_CHANNELS = 4
"""Of images: grey, colours, and one more."""

Run = Callable[[Tensor, Tensor | None], Tensor]
"""A convolution of an activation, times a mask where one is given."""

ConvolutionSettings = tuple[list[int], list[int], list[int], int]
"""Stride, padding, dilation and groups."""


class Convolution:
    """y = W ∗ x + b, and its transpose; `example` is what one stream reads.

    Either is prepared when it is first run, or asked for.
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
    ) -> None:
        self._given = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self._example = example
        self.settings: ConvolutionSettings = (stride, padding, dilation, groups)
        self.is_biased = bias is not None

    @cached_property
    def weight(self) -> Tensor:
        """In channels-last order."""
        self._given = self._given.contiguous(memory_format=CHANNELS_LAST)  # kept once
        return self._given

    @cached_property
    def _forward(self) -> Run:
        both = (2 * len(self._example), *self._example.shape[1:])
        weight = self._given if can_pack(self._given) else self.weight
        return _runner(weight, self._bias, self.settings, both)

    @cached_property
    def _backward(self) -> Run | None:
        """None where the transpose is no convolution."""
        example, (stride, _, _, groups) = self._example, self.settings
        to_image = example.is_cuda and example.shape[1] <= FEW_CHANNELS and groups == 1
        if (to_image or stride != [1, 1]) and _is_single_on_gpu(self._given) and has_triton():
            from dmbp.engine.gpu.triton.windows import is_for_gathering

            if is_for_gathering(self._given, self.settings):
                return self._gathered()
        return self._folded(self._given) if to_image else self._flipped(self._given, example)

    def prepare(self, *, forward: bool = True, transpose: bool = True) -> None:
        """Make of the weight what is run."""
        if forward:
            _ = self._forward
        if transpose and self._backward is None:
            _ = self.weight

    @property
    def input_size(self) -> tuple[int, ...]:
        """Height and width of what it reads."""
        return tuple(self._example.shape[2:])

    def forward(self, activation: Tensor, mask: Tensor | None = None) -> Tensor:
        """The convolution of both streams' rows, times a mask where one is given."""
        return self._forward(activation, mask)

    def transpose(self, gradient: Tensor) -> Tensor:
        """The gradient in the input, from that in the output."""
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

    def _gathered(self) -> Run:
        """The transpose as a product, and pixels that gather what they get."""
        from dmbp.engine.gpu.triton.windows import GatheredTranspose

        transpose = GatheredTranspose(self.weight, self.settings, self.input_size)
        return lambda gradient, _: transpose(channels_last(gradient))

    def _folded(self, weight: Tensor) -> Run:
        """The transpose as a product, every pixel's share of its window, and a sum of windows."""
        stride, padding, dilation, _ = self.settings
        shares = weight.flatten(1).T.contiguous()
        size, window = self.input_size, tuple(weight.shape[2:])

        def run(gradient: Tensor, _: Tensor | None) -> Tensor:
            columns = shares @ gradient.flatten(2)
            return fold(columns, size, window, tuple(dilation), tuple(padding), tuple(stride))

        return run

    def _flipped(self, weight: Tensor, example: Tensor) -> Run | None:
        """The transpose as a convolution, where it is one and that is faster."""
        flipped = flipped_settings(weight.shape[2:], self.settings)
        if flipped is None or not (can_pack(example) or example.device.type == "cuda"):
            return None
        size = result_size(self.input_size, weight.shape[2:], self.settings)
        shape = (len(example), weight.shape[0], *size)
        return _runner(flip(weight), None, flipped, shape)


def result_size(
    size: Sequence[int], kernel: Sequence[int], settings: ConvolutionSettings
) -> tuple[int, int]:
    """Height and width of a convolution's result, where its kernel is not dilated."""
    stride, padding, _, _ = settings
    height, width = (
        (side + 2 * p - k) // s + 1
        for side, k, s, p in zip(size, kernel, stride, padding, strict=True)
    )
    return height, width


def flipped_settings(
    kernel: Sequence[int], settings: ConvolutionSettings
) -> ConvolutionSettings | None:
    """The settings of the convolution that is the transpose of one, where there is such a one."""
    stride, padding, dilation, groups = settings
    around = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
    if stride != [1, 1] or dilation != [1, 1] or groups != 1 or min(around) < 0:
        return None
    return [1, 1], around, [1, 1], 1


def flip(weight: Tensor) -> Tensor:
    """The weight of a convolution that is the transpose of one."""
    flipped = weight if tuple(weight.shape[2:]) == (1, 1) else weight.flip(2, 3)
    order = CHANNELS_LAST if weight.is_cuda else torch.contiguous_format
    return flipped.transpose(0, 1).contiguous(memory_format=order)


def _runner(
    weight: Tensor, bias: Tensor | None, settings: ConvolutionSettings, shape: tuple[int, ...]
) -> Run:
    """The fastest way to run a convolution of inputs of `shape`."""
    stride, padding, _, groups = settings
    if can_pack(weight):
        return _packed(weight, bias, settings, shape)
    pointwise = tuple(weight.shape[2:]) == (1, 1) and stride == [1, 1] and padding == [0, 0]
    if pointwise and groups == 1 and weight.device.type == "cuda":
        return _product(weight, bias)
    if _is_single_on_gpu(weight) and has_triton():
        from dmbp.engine.gpu.triton.winograd import is_for_winograd

        if is_for_winograd(weight, settings):
            return _by_winograd(weight, bias, padding[0])
    return _plain(weight, bias, settings)


def _packed(weight: Tensor, bias: Tensor | None, settings: Any, shape: tuple[int, ...]) -> Run:
    """The call of oneDNN with weights packed for inputs of `shape`."""
    stride, padding, dilation, groups = settings
    packed = aten.mkldnn_reorder_conv2d_weight(
        weight.to_mkldnn(), padding, stride, dilation, groups, list(shape)
    )
    onednn = torch.ops.mkldnn._convolution_pointwise
    last = (padding, stride, dilation, groups)

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return onednn(activation, packed, bias, *last, "none", [], "")
        return onednn.binary(activation, mask, packed, bias, *last, "mul", None, None, [], None)

    return run


def _product(weight: Tensor, bias: Tensor | None) -> Run:
    """A convolution of 1 × 1 as the product of pixels and weights."""
    matrix = weight.flatten(1).contiguous()

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        pixels = activation.permute(0, 2, 3, 1)
        result = torch.nn.functional.linear(pixels, matrix, bias).permute(0, 3, 1, 2)
        return result if mask is None else result.mul_(mask)

    return run


def _is_single_on_gpu(weight: Tensor) -> bool:
    is_single = weight.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
    return weight.device.type == "cuda" and is_single


def _by_winograd(weight: Tensor, bias: Tensor | None, padding: int) -> Run:
    """A convolution of 3 × 3 in fewer products."""
    from dmbp.engine.gpu.triton.winograd import Winograd

    convolution = Winograd(weight, bias, padding)

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        result = convolution(channels_last(activation))
        return result if mask is None else result.mul_(mask)

    return run


def _plain(weight: Tensor, bias: Tensor | None, settings: Any) -> Run:
    """PyTorch's own convolution."""
    weight = weight.contiguous(memory_format=CHANNELS_LAST)

    def run(activation: Tensor, mask: Tensor | None) -> Tensor:
        result = torch.conv2d(activation, weight, bias, *settings)
        return result if mask is None else result.mul_(mask)

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
