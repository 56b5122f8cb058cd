"""Triton kernels around the products of a convolution by Winograd's method, F(2 × 2, 3 × 3).

    y = Aᵀ [(G w Gᵀ) ⊙ (Bᵀ d B)] A          two by two results from four by four pixels d

Images are channels-last and dense. A tile is two by two pixels of the result; tiles are counted row
by row over all images. What is multiplied lies in memory as (16, tiles, channels).

Convolutions of 3 × 3 in single precision on a GPU, by Winograd's method.

Four results share sixteen products instead of thirty-six, and sums are over channels alone, which
rounds less: errors of 0.3 to 1.1 millionths of the largest result, cuDNN's 0.3 to 3.8. Of
channels-last images cuDNN makes others first, and it may choose a Fourier transform that takes ten
times as long. Both streams on an H200, cuDNN against this, in milliseconds:

    one image   224 × 224 × 64  2.86, 0.19   56 × 56 × 256  0.26, 0.12     7 × 7 × 512  0.13, 0.02
    64 images   224 × 224 × 64  12.9, 11.7   56 × 56 × 256  17.5, 5.8    28 × 28 × 512  3.7, 4.9

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.triton.launch import launch


@triton.jit
def _place(first, tiles, channels, down, along, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """A program's tiles and channels, which of them are there, and where their results lie."""
    q = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    tile = first + q
    row = (tile // (down * along)).to(tl.int64)
    return q, c, (q < tiles) & (c < channels), row, tile // along % down * 2, tile % along * 2


@triton.jit
def _column(images, row, top, x, c, ok, height, width, channels):
    """Bᵀ applied to four pixels under each other."""
    ok &= (x >= 0) & (x < width)
    at = ((row * height + top) * width + x) * channels + c
    below = width * channels
    a = tl.load(images + at, ok & (top >= 0) & (top < height), other=0.0)
    b = tl.load(images + at + below, ok & (top >= -1) & (top < height - 1), other=0.0)
    d = tl.load(images + at + 2 * below, ok & (top >= -2) & (top < height - 2), other=0.0)
    e = tl.load(images + at + 3 * below, ok & (top >= -3) & (top < height - 3), other=0.0)
    return a - d, b + d, d - b, b - e


@triton.jit
def _spread_row(spread, at, ok, step, a, b, d, e):
    """A row times B, stored `step` elements apart."""
    tl.store(spread + at, a - d, ok)
    tl.store(spread + at + step, b + d, ok)
    tl.store(spread + at + 2 * step, d - b, ok)
    tl.store(spread + at + 3 * step, b - e, ok)


@triton.jit(do_not_specialize=["first", "tiles", "height", "width", "down", "along", "padding"])
def spread_pixels(
    spread, images, first, tiles, channels, height, width, down, along, padding,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Bᵀ d B of `tiles` tiles from `first` on; there are `down` by `along` of them an image."""
    q, c, ok, row, y, x = _place(first, tiles, channels, down, along, TILE, WIDTH)
    top = y - padding
    left = x - padding
    a0, a1, a2, a3 = _column(images, row, top, left, c, ok, height, width, channels)
    b0, b1, b2, b3 = _column(images, row, top, left + 1, c, ok, height, width, channels)
    d0, d1, d2, d3 = _column(images, row, top, left + 2, c, ok, height, width, channels)
    e0, e1, e2, e3 = _column(images, row, top, left + 3, c, ok, height, width, channels)
    at = q * channels + c
    step = tiles.to(tl.int64) * channels
    _spread_row(spread, at, ok, step, a0, b0, d0, e0)
    _spread_row(spread + 4 * step, at, ok, step, a1, b1, d1, e1)
    _spread_row(spread + 8 * step, at, ok, step, a2, b2, d2, e2)
    _spread_row(spread + 12 * step, at, ok, step, a3, b3, d3, e3)


@triton.jit
def _gathered(products, at, ok, step):
    """Aᵀ applied to a column of products, which are `step` elements apart."""
    a = tl.load(products + at, ok, other=0.0)
    b = tl.load(products + at + step, ok, other=0.0)
    d = tl.load(products + at + 2 * step, ok, other=0.0)
    e = tl.load(products + at + 3 * step, ok, other=0.0)
    return a + b + d, b - d - e


@triton.jit(do_not_specialize=["first", "tiles", "height", "width", "down", "along", "biased"])
def gather_products(
    images, products, bias, first, tiles, channels, height, width, down, along, biased,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Aᵀ m A of `tiles` tiles from `first` on, and the bias of the first `biased` channels."""
    q, c, ok, row, y, x = _place(first, tiles, channels, down, along, TILE, WIDTH)
    at = q * channels + c
    step = tiles.to(tl.int64) * channels
    a0, a1 = _gathered(products, at, ok, 4 * step)
    b0, b1 = _gathered(products + step, at, ok, 4 * step)
    d0, d1 = _gathered(products + 2 * step, at, ok, 4 * step)
    e0, e1 = _gathered(products + 3 * step, at, ok, 4 * step)
    added = tl.load(bias + c, c < biased, other=0.0)
    to = images + ((row * height + y) * width + x) * channels + c
    beside = ok & (x + 1 < width)
    under = y + 1 < height
    tl.store(to, a0 + b0 + d0 + added, ok)
    tl.store(to + channels, b0 - d0 - e0 + added, beside)
    tl.store(to + width * channels, a1 + b1 + d1 + added, ok & under)
    tl.store(to + (width + 1) * channels, b1 - d1 - e1 + added, beside & under)


@triton.jit
def _taps(weight, at, ok, step):
    """G applied to three numbers, `step` elements apart."""
    a = tl.load(weight + at, ok, other=0.0)
    b = tl.load(weight + at + step, ok, other=0.0)
    d = tl.load(weight + at + 2 * step, ok, other=0.0)
    return a, 0.5 * (a + b + d), 0.5 * (a - b + d), d


@triton.jit
def _store_taps(factors, at, ok, step, a, b, d):
    tl.store(factors + at, a, ok)
    tl.store(factors + at + step, 0.5 * (a + b + d), ok)
    tl.store(factors + at + 2 * step, 0.5 * (a - b + d), ok)
    tl.store(factors + at + 3 * step, d, ok)


@triton.jit(do_not_specialize=["elements"])
def spread_weight(factors, weight, read, elements, BLOCK: tl.constexpr):
    """G w Gᵀ as (16, channels, read), of a weight that lies in memory as (channels, 3, 3, read)."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = k < elements
    at = k // read * (9 * read) + k % read
    a0, a1, a2, a3 = _taps(weight, at, ok, 3 * read)
    b0, b1, b2, b3 = _taps(weight + read, at, ok, 3 * read)
    d0, d1, d2, d3 = _taps(weight + 2 * read, at, ok, 3 * read)
    _store_taps(factors, k, ok, elements, a0, b0, d0)
    _store_taps(factors + 4 * elements, k, ok, elements, a1, b1, d1)
    _store_taps(factors + 8 * elements, k, ok, elements, a2, b2, d2)
    _store_taps(factors + 12 * elements, k, ok, elements, a3, b3, d3)


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
            spread_weight, (-(-channels * read // BLOCK),),
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
                spread_pixels, (-(-count // TILES), -(-read // WIDTH)),
                spread, images, first, count, read, *size, down, along, self._padding,
                TILE=TILES, WIDTH=WIDTH,
            )  # fmt: skip
            products = torch.bmm(spread, self._factors)
            launch(
                gather_products, (-(-count // TILES), -(-channels // WIDTH)),
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
