"""Transposes of max-pooling and of convolutions in Triton, where each pixel gathers from windows.

A transpose sends every window's gradient to the pixels of the window. Scattering adds in the order
in which threads arrive, so results differ between calls. Here every pixel gathers from the windows
that contain it, in a fixed order, and the result is the same each time:

- max-pooling: a window's gradient goes to the pixel that won it;
- a convolution with a stride or few input channels: a matrix product gives the gradient of every
  tap of every window (the columns of im2col), and pixels gather them (col2im). Reading out 64
  images of ResNet50 on an H200 takes 48 ms with cuDNN's deterministic kernels, and 34 with this.

These kernels run in float32 before and after the iterations. Images are channels-last and dense.
Window sizes are ordinary arguments, so that one compiled kernel serves all networks.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.product import multiply
from dmbp.engine.gpu.triton.site import PixelLayout, empty_channels_last, launch_grid, tile_settings
from dmbp.engine.plan.kernels import ConvolutionSettings, Pooling


@triton.jit(do_not_specialize=["windows", "width", "out_height", "out_width", "index_stride",
                               "channel_stride", "row_stride", "kernel", "stride",
                               "padding"])  # fmt: skip
def find_winners_kernel(
    winners, index, windows, channels, width, out_height, out_width,
    index_stride, channel_stride, row_stride, kernel, stride, padding,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Convert max-pooling's flat indices into an image into positions in the window, channels-last.

    Reads `index` by its strides; writes `winners` (windows, channels) as uint8, counted row by row.
    """
    window = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (window < windows) & (c < channels)
    row = (window // (out_height * out_width)).to(tl.int64)
    window_index = window % (out_height * out_width)
    source = (
        index + row * row_stride + window_index * index_stride + c.to(tl.int64) * channel_stride
    )
    winner_pixel = tl.load(source, ok, other=0).to(tl.int32)
    y = winner_pixel // width - (window_index // out_width * stride - padding)
    x = winner_pixel % width - (window_index % out_width * stride - padding)
    at = window.to(tl.int64) * channels + c
    tl.store(winners + at, (y * kernel + x).to(tl.uint8), ok)


@triton.jit(do_not_specialize=["pixels", "rows", "height", "width", "out_height", "out_width",
                               "down", "along", "stride_down", "stride_along", "padding_down",
                               "padding_along"])  # fmt: skip
def gather_from_windows_kernel(
    images, windows, winners, pixels, rows, channels, height, width, out_height, out_width,
    down, along, stride_down, stride_along, padding_down, padding_along,
    IS_POOLING: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add up, for every pixel, its gradients from all windows of `down` by `along` taps around it.

    If `IS_POOLING`, `windows` (windows, channels) has one gradient for each window, which goes to
    the pixel in `winners`; both streams share the winners of `rows` rows. Otherwise it has one for
    each tap, (windows, taps, channels). Writes `images` (pixels, channels).
    """
    pixel = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (pixel < pixels) & (c < channels)
    row = pixel // (height * width)
    y = pixel // width % height + padding_down
    x = pixel % width + padding_along
    last_down = y // stride_down
    last_along = x // stride_along
    reach = (along + stride_along - 1) // stride_along
    total = tl.zeros((TILE, WIDTH), tl.float32)
    for k in range((down + stride_down - 1) // stride_down * reach):
        oy = last_down - k // reach
        ox = last_along - k % reach
        dy = y - oy * stride_down
        dx = x - ox * stride_along
        contains = (oy >= 0) & (oy < out_height) & (ox >= 0) & (ox < out_width)
        contains = ok & contains & (dy < down) & (dx < along)
        window = (row.to(tl.int64) * out_height + oy) * out_width + ox
        tap = dy * along + dx
        if IS_POOLING:
            shared = ((row % rows).to(tl.int64) * out_height + oy) * out_width + ox
            winner = tl.load(winners + shared * channels + c, contains, other=255).to(tl.int32)
            contains = contains & (winner == tap)
            total += tl.load(windows + window * channels + c, contains, other=0.0).to(tl.float32)
        else:
            at = (window * (down * along) + tap) * channels + c
            total += tl.load(windows + at, contains, other=0.0)
    to = images + pixel.to(tl.int64) * channels + c
    tl.store(to, total.to(images.dtype.element_ty), ok)


def window_winners(pooling: Pooling, width: int) -> Tensor:
    """Return each window's winner as a position in the window, uint8 and channels-last.

    `width` is the width of the images before pooling.
    """
    index = pooling.index
    rows, channels, out_height, out_width = index.shape
    if index.stride(2) != out_width * index.stride(3):
        index = index.contiguous()
    winners = empty_channels_last(index.shape, torch.uint8, index)
    layout = PixelLayout(rows * out_height * out_width, channels, channels)
    launch(
        find_winners_kernel, launch_grid(layout),
        winners, index, layout.pixels, channels, width, out_height, out_width,
        index.stride(3), index.stride(1), index.stride(0),
        pooling.kernel, pooling.stride, pooling.padding, **tile_settings(layout),
    )  # fmt: skip
    return winners


def unpool(gradient: Tensor, winners: Tensor, pooling: Pooling, size: Sequence[int]) -> Tensor:
    """Return the gradient with respect to the images before pooling, of height and width `size`.

    `gradient` has the rows of one stream or both.
    """
    rows, channels, *out_size = winners.shape
    result = empty_channels_last((len(gradient), channels, *size), gradient.dtype, gradient)
    layout = PixelLayout(len(gradient) * size[0] * size[1], channels, channels)
    windows = [side for side in (pooling.kernel, pooling.stride, pooling.padding) for _ in "yx"]
    launch(
        gather_from_windows_kernel, launch_grid(layout),
        result, gradient, winners, layout.pixels, rows, channels, *size, *out_size, *windows,
        IS_POOLING=True, **tile_settings(layout),
    )  # fmt: skip
    return result


MAX_COLUMN_ELEMENTS = 2**27
"""The maximum number of column elements kept at a time, unless one row has more."""

GATHER_TILE_ELEMENTS = 1024
MAX_TILE_CHANNELS = 64
"""The number of elements in a tile, and its maximum number of channels."""


class GatheredTranspose:
    """Maps the gradient with respect to a convolution's output to that with respect to its input.

    The input consists of images of `size`.
    """

    def __init__(
        self, weight: Tensor, settings: ConvolutionSettings, size: tuple[int, ...]
    ) -> None:
        channels, in_channels, *kernel = weight.shape
        self._weight_matrix = weight.permute(2, 3, 1, 0).reshape(-1, channels).contiguous()
        self._in_channels = in_channels
        self._size = size
        (down, along), (stride, padding) = kernel, settings[:2]
        self._windows = (down, along, *stride, *padding)

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the input, channels-last."""
        rows, channels, *out_size = gradient.shape
        result = torch.empty(
            (rows, self._in_channels, *self._size),
            dtype=gradient.dtype,
            device=gradient.device,
            memory_format=torch.channels_last,
        )
        at_once = max(
            MAX_COLUMN_ELEMENTS // (out_size[0] * out_size[1] * len(self._weight_matrix)), 1
        )
        width = min(MAX_TILE_CHANNELS, 1 << (self._in_channels - 1).bit_length())
        tile = GATHER_TILE_ELEMENTS // width
        for first in range(0, rows, at_once):
            part = result[first : first + at_once]
            pixels = gradient[first : first + at_once].permute(0, 2, 3, 1).reshape(-1, channels)
            columns = multiply(pixels, self._weight_matrix)
            count = len(part) * self._size[0] * self._size[1]
            launch(
                gather_from_windows_kernel, (-(-count // tile), -(-self._in_channels // width)),
                part, columns, columns, count, rows, self._in_channels, *self._size, *out_size,
                *self._windows, IS_POOLING=False, TILE=tile, WIDTH=width,
            )  # fmt: skip
        return result


def can_gather_transpose(weight: Tensor, settings: ConvolutionSettings) -> bool:
    """Return whether a convolution's transpose can be computed by `GatheredTranspose`."""
    _, _, dilation, groups = settings
    return dilation == [1, 1] and groups == 1 and weight.dim() == 4
