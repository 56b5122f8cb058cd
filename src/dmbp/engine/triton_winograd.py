"""Convolutions of 3 × 3 in single precision on a GPU, by Winograd's method.

Four results share sixteen products instead of thirty-six, and sums are over channels alone, which
rounds less: errors of 0.3 to 1.1 millionths of the largest result, cuDNN's 0.3 to 3.8. Of
channels-last images cuDNN makes others first, and it may choose a Fourier transform that takes ten
times as long. Both streams on an H200, cuDNN against this, in milliseconds:

    one image   224 × 224 × 64  2.86, 0.19   56 × 56 × 256  0.26, 0.12     7 × 7 × 512  0.13, 0.02
    64 images   224 × 224 × 64  12.9, 11.7   56 × 56 × 256  17.5, 5.8    28 × 28 × 512  3.7, 4.9

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_winograd_kernels
from dmbp.engine.triton_launch import launch

kernels: Any = triton_winograd_kernels  # whose arguments Triton reads in its own way

AT_ONCE = 2**27
"""Elements that are kept of what is multiplied and of the products, together."""

TILES = 16
WIDTH = 64
BLOCK = 256

FEWEST_CHANNELS = 32
"""For which it pays."""


class Winograd:
    """y = W ∗ x + b for a weight of 3 × 3, at stride one, of channels-last images."""

    def __init__(self, weight: Tensor, bias: Tensor | None, padding: int) -> None:
        channels, read = weight.shape[:2]
        lying = weight.permute(0, 2, 3, 1).contiguous()
        factors = torch.empty(16, channels, read, device=weight.device, dtype=weight.dtype)
        launch(
            kernels.spread_weight, (-(-channels * read // BLOCK),),
            factors, lying, read, channels * read, BLOCK=BLOCK,
        )  # fmt: skip
        self._factors = factors.mT
        self._bias = bias
        self._padding = padding

    def __call__(self, images: Tensor) -> Tensor:
        """The convolution of all rows."""
        rows, read, *size = images.shape
        channels = self._factors.shape[2]
        height, width = (side + 2 * self._padding - 2 for side in size)
        result = torch.empty(
            (rows, channels, height, width),
            dtype=images.dtype,
            device=images.device,
            memory_format=torch.channels_last,
        )
        down, along = -(-height // 2), -(-width // 2)
        tiles = rows * down * along
        most = max(AT_ONCE // (16 * (read + channels)) // TILES, 1) * TILES
        bias = images if self._bias is None else self._bias
        for first in range(0, tiles, most):
            count = min(most, tiles - first)
            spread = images.new_empty(16, count, read)
            launch(
                kernels.spread_pixels, (-(-count // TILES), -(-read // WIDTH)),
                spread, images, first, count, read, *size, down, along, self._padding,
                TILE=TILES, WIDTH=WIDTH,
            )  # fmt: skip
            products = torch.bmm(spread, self._factors)
            launch(
                kernels.gather_products, (-(-count // TILES), -(-channels // WIDTH)),
                result, products, bias, first, count, channels, height, width, down, along,
                0 if self._bias is None else channels, TILE=TILES, WIDTH=WIDTH,
            )  # fmt: skip
        return result


def is_for_winograd(weight: Tensor, settings: Any) -> bool:
    """Whether a convolution can be run so, and if that is faster."""
    stride, padding, dilation, groups = settings
    plain = stride == [1, 1] and dilation == [1, 1] and groups == 1
    fits = tuple(weight.shape[2:]) == (3, 3) and padding in ([0, 0], [1, 1], [2, 2])
    return plain and fits and min(weight.shape[:2]) >= FEWEST_CHANNELS
