"""Convolutions of few pixels on a GPU, their sum split into parts that are computed side by side.

A single image's convolution has fewer tiles of results than a GPU has processors, and cuDNN leaves
the others idle. The site that reads the parts adds them, in the pass it makes anyway. 3 × 3, both
streams of one image on an H200, cuDNN against this, in microseconds: 28 × 28 pixels of 128 channels
7.3 and 5.1, 14 × 14 of 256 8.0 and 5.1, 7 × 7 of 512 11.4 and 5.4. (1 × 1 is left to cuBLAS, which
splits products itself.)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_convolution_kernels
from dmbp.engine.convolution import Settings, result_size
from dmbp.engine.learning import Split
from dmbp.engine.triton_launch import launch

kernels: Any = triton_convolution_kernels  # whose arguments Triton reads in its own way

TILE = 64
"""Pixels, channels, and channels read at a step, of a program."""

WARPS = 4
STAGES = 3

SUMMANDS = (8, 4)
"""Where results have a quarter as many tiles as there are processors, or half as many."""

PROCESSORS = 132
"""Of an H200; where kernels are interpreted there are none."""


class SplitConvolution:
    """A convolution without bias of channels-last images, in `summands` parts."""

    def __init__(self, weight: Tensor, settings: Settings, summands: int) -> None:
        self._weight = weight.permute(0, 2, 3, 1).contiguous()
        self._settings = settings
        self.summands = summands

    def __call__(self, images: Tensor) -> Split:
        """The convolution of all rows."""
        rows, read, *size = images.shape
        channels, *kernel, _ = self._weight.shape
        (stride, _), (padding, _), _, _ = self._settings
        height, width = result_size(size, kernel, self._settings)
        pixels = rows * height * width
        sums = torch.empty(
            self.summands, rows, height, width, channels, device=images.device, dtype=torch.float32
        )
        taps = kernel[0] * kernel[1]
        launch(
            kernels.split_convolution, (-(-pixels // TILE), channels // TILE, self.summands),
            sums, images, self._weight, pixels, channels, read, *size, height, width,
            kernel[1], stride, padding, taps * read // TILE,
            TILE=TILE, WIDTH=TILE, DEPTH=TILE, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        return Split(sums)


def parts_where_faster(
    shape: Sequence[int],
    settings: Settings,
    *,
    rows: int,
    size: tuple[int, ...],
    device: torch.device,
) -> int:
    """In how many parts the convolution of `rows` images of `size` is fastest; one is whole.

    Its weight is of some `shape`.
    """
    channels, read, *kernel = shape
    stride, padding, dilation, groups = settings
    square = len(set(stride)) == len(set(padding)) == 1
    if not square or dilation != [1, 1] or groups != 1 or kernel == [1, 1]:
        return 1
    if channels % TILE or read % TILE:
        return 1
    height, width = result_size(size, kernel, settings)
    tiles = -(-rows * height * width // TILE) * (channels // TILE)
    return _summands(tiles, device)


def _summands(tiles: int, device: torch.device) -> int:
    processors = PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    many, some = SUMMANDS
    return many if 4 * tiles <= processors else some if 2 * tiles <= processors else 1
