"""Transposes of convolutions in single precision on a GPU: a product, whose columns are gathered.

For those with a stride, and for those to the few channels of an image. cuDNN has kernels that add
in the order in which threads arrive, so that no two calls agree, and others: with these it takes
48 ms on an H200 to read out 64 images of ResNet50, with this 34.
"""

from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_window_kernels
from dmbp.engine.convolution import Settings
from dmbp.engine.triton_launch import launch

kernels: Any = triton_window_kernels  # whose arguments Triton reads in its own way

AT_ONCE = 2**27
"""Elements of columns that are kept."""

ELEMENTS = 1024
WIDEST = 64
"""Elements of a tile, and channels at most."""


class GatheredTranspose:
    """From the gradient in a convolution's result to that in what it reads, images of `size`."""

    def __init__(self, weight: Tensor, settings: Settings, size: tuple[int, ...]) -> None:
        channels, read, *kernel = weight.shape
        self._shares = weight.permute(0, 2, 3, 1).reshape(channels, -1)
        self._read = read
        self._size = size
        (down, along), (stride, padding) = kernel, settings[:2]
        self._windows = (down, along, *stride, *padding)

    def __call__(self, gradient: Tensor) -> Tensor:
        """The gradients of all rows, channels-last."""
        rows, channels, *out_size = gradient.shape
        result = torch.empty(
            (rows, self._read, *self._size),
            dtype=gradient.dtype,
            device=gradient.device,
            memory_format=torch.channels_last,
        )
        at_once = max(AT_ONCE // (out_size[0] * out_size[1] * self._shares.shape[1]), 1)
        width = min(WIDEST, 1 << (self._read - 1).bit_length())
        tile = ELEMENTS // width
        for first in range(0, rows, at_once):
            part = result[first : first + at_once]
            pixels = gradient[first : first + at_once].permute(0, 2, 3, 1).reshape(-1, channels)
            columns = pixels @ self._shares
            count = len(part) * self._size[0] * self._size[1]
            launch(
                kernels.gather_from_windows, (-(-count // tile), -(-self._read // width)),
                part, columns, columns, count, rows, self._read, *self._size, *out_size,
                *self._windows, IS_POOLING=False, TILE=tile, WIDTH=width,
            )  # fmt: skip
        return result


def is_for_gathering(weight: Tensor, settings: Settings) -> bool:
    """Whether a transpose can be run so."""
    _, _, dilation, groups = settings
    return dilation == [1, 1] and groups == 1 and weight.dim() == 4
