"""Triton kernels for windows over images: winners of a pooling, and what pixels get of windows.

Images are channels-last and dense. Sizes of windows are arguments like others: these kernels run
before and after the iterations, and one that suits all networks is compiled once.

Max-pooling by itself in Triton: winners by their place in a window, and the way back.

Every pixel gathers from the windows it won: added up in one order, so that the sum is the same each
time, which it is not where windows scatter.

Transposes of convolutions in single precision on a GPU: a product, whose columns are gathered.

For those with a stride, and for those to the few channels of an image. cuDNN has kernels that add
in the order in which threads arrive, so that no two calls agree, and others: with these it takes
48 ms on an H200 to read out 64 images of ResNet50, with this 34.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.site import Grid, empty, programs, tile
from dmbp.engine.plan.kernels import ConvolutionSettings, Pooling


@triton.jit(do_not_specialize=["windows", "width", "out_height", "out_width", "index_stride",
                               "channel_stride", "row_stride", "kernel", "stride",
                               "padding"])  # fmt: skip
def find_winners(
    winners, index, windows, channels, width, out_height, out_width,
    index_stride, channel_stride, row_stride, kernel, stride, padding,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Places in windows, counted row by row, channels last, from places in images."""
    window = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (window < windows) & (c < channels)
    row = (window // (out_height * out_width)).to(tl.int64)
    place = window % (out_height * out_width)
    given = index + row * row_stride + place * index_stride + c.to(tl.int64) * channel_stride
    found = tl.load(given, ok, other=0).to(tl.int32)
    y = found // width - (place // out_width * stride - padding)
    x = found % width - (place % out_width * stride - padding)
    at = window.to(tl.int64) * channels + c
    tl.store(winners + at, (y * kernel + x).to(tl.uint8), ok)


@triton.jit(do_not_specialize=["pixels", "rows", "height", "width", "out_height", "out_width",
                               "down", "along", "stride_down", "stride_along", "padding_down",
                               "padding_along"])  # fmt: skip
def gather_from_windows(
    images, windows, winners, pixels, rows, channels, height, width, out_height, out_width,
    down, along, stride_down, stride_along, padding_down, padding_along,
    IS_POOLING: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The sum of what a pixel gets of all windows of `down` by `along` taps that it is in.

    Where `IS_POOLING` a window has one number, for its winner; streams share the winners of `rows`
    rows. Else there is one for each tap, (windows, taps, channels).
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
        there = (oy >= 0) & (oy < out_height) & (ox >= 0) & (ox < out_width)
        there = ok & there & (dy < down) & (dx < along)
        window = (row.to(tl.int64) * out_height + oy) * out_width + ox
        tap = dy * along + dx
        if IS_POOLING:
            shared = ((row % rows).to(tl.int64) * out_height + oy) * out_width + ox
            won = tl.load(winners + shared * channels + c, there, other=255).to(tl.int32)
            there = there & (won == tap)
            total += tl.load(windows + window * channels + c, there, other=0.0).to(tl.float32)
        else:
            at = (window * (down * along) + tap) * channels + c
            total += tl.load(windows + at, there, other=0.0)
    to = images + pixel.to(tl.int64) * channels + c
    tl.store(to, total.to(images.dtype.element_ty), ok)


def winners_of(pooling: Pooling, width: int) -> Tensor:
    """Winners as places in their windows, counted row by row, in channels-last order."""
    index = pooling.index
    rows, channels, out_height, out_width = index.shape
    if index.stride(2) != out_width * index.stride(3):
        index = index.contiguous()
    winners = empty(index.shape, torch.uint8, index)
    grid = Grid(rows * out_height * out_width, channels, channels)
    launch(
        find_winners, programs(grid),
        winners, index, grid.pixels, channels, width, out_height, out_width,
        index.stride(3), index.stride(1), index.stride(0),
        pooling.kernel, pooling.stride, pooling.padding, **tile(grid),
    )  # fmt: skip
    return winners


def unpooled(gradient: Tensor, winners: Tensor, pooling: Pooling, size: Sequence[int]) -> Tensor:
    """The gradient in images of `size`, of one stream or both."""
    rows, channels, *out_size = winners.shape
    result = empty((len(gradient), channels, *size), gradient.dtype, gradient)
    grid = Grid(len(gradient) * size[0] * size[1], channels, channels)
    windows = [side for side in (pooling.kernel, pooling.stride, pooling.padding) for _ in "yx"]
    launch(
        gather_from_windows, programs(grid),
        result, gradient, winners, grid.pixels, rows, channels, *size, *out_size, *windows,
        IS_POOLING=True, **tile(grid),
    )  # fmt: skip
    return result


AT_ONCE = 2**27
"""Elements of columns that are kept."""

ELEMENTS = 1024
WIDEST = 64
"""Elements of a tile, and channels at most."""


class GatheredTranspose:
    """From the gradient in a convolution's result to that in what it reads, images of `size`."""

    def __init__(
        self, weight: Tensor, settings: ConvolutionSettings, size: tuple[int, ...]
    ) -> None:
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
                gather_from_windows, (-(-count // tile), -(-self._read // width)),
                part, columns, columns, count, rows, self._read, *self._size, *out_size,
                *self._windows, IS_POOLING=False, TILE=tile, WIDTH=width,
            )  # fmt: skip
        return result


def is_for_gathering(weight: Tensor, settings: ConvolutionSettings) -> bool:
    """Whether a transpose can be run so."""
    _, _, dilation, groups = settings
    return dilation == [1, 1] and groups == 1 and weight.dim() == 4
