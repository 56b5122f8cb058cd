"""3 × 3 convolutions in float32 by Winograd's method F(2 × 2, 3 × 3), in Triton.

    y = Aᵀ [(G w Gᵀ) ⊙ (Bᵀ d B)] A          a tile y of 2 × 2 outputs from 4 × 4 pixels d

Four outputs share sixteen products instead of thirty-six, and sums run over channels alone, which
rounds less: errors are 0.3 to 1.1 millionths of the largest output, cuDNN's 0.3 to 3.8. cuDNN also
copies channels-last images first, and it may choose a Fourier transform that takes ten times as
long. Milliseconds for both streams on an H200, with cuDNN and with this:

    one image   224 × 224 × 64  2.86, 0.19   56 × 56 × 256  0.26, 0.12     7 × 7 × 512  0.13, 0.02
    64 images   224 × 224 × 64  12.9, 11.7   56 × 56 × 256  17.5, 5.8    28 × 28 × 512  3.7, 4.9

(These are with cuBLAS for the products of matrices.)

One kernel transforms the weight, once; another transforms the input; `product.py` multiplies the
sixteen pairs of matrices; a third kernel transforms the products and adds the bias. Images are
channels-last and dense. Tiles are counted row by row over all images; transformed inputs and
products lie in memory as (16, tiles, channels).

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.product import multiply


@triton.jit
def _place(
    first, tiles, channels, tiles_down, tiles_along, TILE: tl.constexpr, WIDTH: tl.constexpr
):
    """Return the tiles and channels that a program handles, and the tiles' positions.

    Returns the tiles' indices counted from `first`, the channels, a boolean mask of those that
    exist, and each tile's row, and the y and x of its top left output pixel.
    """
    q = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    tile = first + q
    row = (tile // (tiles_down * tiles_along)).to(tl.int64)
    return (
        q,
        c,
        (q < tiles) & (c < channels),
        row,
        tile // tiles_along % tiles_down * 2,
        tile % tiles_along * 2,
    )


@triton.jit
def _column(images, row, top, x, c, ok, height, width, channels):
    """Apply Bᵀ to a column of four input pixels; pixels outside the image are zero."""
    ok &= (x >= 0) & (x < width)
    at = ((row * height + top) * width + x) * channels + c
    below = width * channels
    a = tl.load(images + at, ok & (top >= 0) & (top < height), other=0.0)
    b = tl.load(images + at + below, ok & (top >= -1) & (top < height - 1), other=0.0)
    d = tl.load(images + at + 2 * below, ok & (top >= -2) & (top < height - 2), other=0.0)
    e = tl.load(images + at + 3 * below, ok & (top >= -3) & (top < height - 3), other=0.0)
    return a - d, b + d, d - b, b - e


@triton.jit
def _store_input_row(spread, at, ok, step, a, b, d, e):
    """Multiply a row of four by B, and store the results `step` elements apart."""
    tl.store(spread + at, a - d, ok)
    tl.store(spread + at + step, b + d, ok)
    tl.store(spread + at + 2 * step, d - b, ok)
    tl.store(spread + at + 3 * step, b - e, ok)


@triton.jit(
    do_not_specialize=["first", "tiles", "height", "width", "tiles_down", "tiles_along", "padding"]
)
def winograd_input_kernel(
    spread, images, first, tiles, channels, height, width, tiles_down, tiles_along, padding,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Transform the input: Bᵀ d B of `tiles` tiles from tile `first` on.

    Reads `images`; writes `spread` (16, tiles, channels). An image has `tiles_down` by
    `tiles_along` tiles.
    """
    q, c, ok, row, y, x = _place(first, tiles, channels, tiles_down, tiles_along, TILE, WIDTH)
    top = y - padding
    left = x - padding
    a0, a1, a2, a3 = _column(images, row, top, left, c, ok, height, width, channels)
    b0, b1, b2, b3 = _column(images, row, top, left + 1, c, ok, height, width, channels)
    d0, d1, d2, d3 = _column(images, row, top, left + 2, c, ok, height, width, channels)
    e0, e1, e2, e3 = _column(images, row, top, left + 3, c, ok, height, width, channels)
    at = q * channels + c
    step = tiles.to(tl.int64) * channels
    _store_input_row(spread, at, ok, step, a0, b0, d0, e0)
    _store_input_row(spread + 4 * step, at, ok, step, a1, b1, d1, e1)
    _store_input_row(spread + 8 * step, at, ok, step, a2, b2, d2, e2)
    _store_input_row(spread + 12 * step, at, ok, step, a3, b3, d3, e3)


@triton.jit
def _load_output_column(products, at, ok, step):
    """Apply Aᵀ to a column of four products, which are `step` elements apart."""
    a = tl.load(products + at, ok, other=0.0)
    b = tl.load(products + at + step, ok, other=0.0)
    d = tl.load(products + at + 2 * step, ok, other=0.0)
    e = tl.load(products + at + 3 * step, ok, other=0.0)
    return a + b + d, b - d - e


@triton.jit(
    do_not_specialize=["first", "tiles", "height", "width", "tiles_down", "tiles_along", "biased"]
)
def winograd_output_kernel(
    images, products, bias, first, tiles, channels, height, width, tiles_down, tiles_along, biased,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Transform the output: Aᵀ m A of `tiles` tiles from tile `first` on, plus the bias.

    Reads `products` (16, tiles, channels) and `bias`, which has `biased` channels, zero if it is
    missing; writes 2 × 2 pixels of `images` for each tile.
    """
    q, c, ok, row, y, x = _place(first, tiles, channels, tiles_down, tiles_along, TILE, WIDTH)
    at = q * channels + c
    step = tiles.to(tl.int64) * channels
    a0, a1 = _load_output_column(products, at, ok, 4 * step)
    b0, b1 = _load_output_column(products + step, at, ok, 4 * step)
    d0, d1 = _load_output_column(products + 2 * step, at, ok, 4 * step)
    e0, e1 = _load_output_column(products + 3 * step, at, ok, 4 * step)
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
    """Apply G to three taps, which are `step` elements apart."""
    a = tl.load(weight + at, ok, other=0.0)
    b = tl.load(weight + at + step, ok, other=0.0)
    d = tl.load(weight + at + 2 * step, ok, other=0.0)
    return a, 0.5 * (a + b + d), 0.5 * (a - b + d), d


@triton.jit
def _store_taps(factors, at, ok, step, a, b, d):
    """Multiply a row of three by Gᵀ, and store the results `step` elements apart."""
    tl.store(factors + at, a, ok)
    tl.store(factors + at + step, 0.5 * (a + b + d), ok)
    tl.store(factors + at + 2 * step, 0.5 * (a - b + d), ok)
    tl.store(factors + at + 3 * step, d, ok)


@triton.jit(do_not_specialize=["elements"])
def winograd_weight_kernel(factors, weight, in_channels, elements, BLOCK: tl.constexpr):
    """Transform the weight: G w Gᵀ.

    Reads `weight`, in memory (channels, 3, 3, in_channels); writes `factors` (16, channels,
    in_channels).
    """
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = k < elements
    at = k // in_channels * (9 * in_channels) + k % in_channels
    a0, a1, a2, a3 = _taps(weight, at, ok, 3 * in_channels)
    b0, b1, b2, b3 = _taps(weight + in_channels, at, ok, 3 * in_channels)
    d0, d1, d2, d3 = _taps(weight + 2 * in_channels, at, ok, 3 * in_channels)
    _store_taps(factors, k, ok, elements, a0, b0, d0)
    _store_taps(factors + 4 * elements, k, ok, elements, a1, b1, d1)
    _store_taps(factors + 8 * elements, k, ok, elements, a2, b2, d2)
    _store_taps(factors + 12 * elements, k, ok, elements, a3, b3, d3)


MAX_WORKSPACE_ELEMENTS = 2**27
"""The maximum number of transformed input and product elements kept at a time."""

TILES = 16
WIDTH = 64
BLOCK = 256
"""The number of tiles and channels per program that transforms images, and of elements per program
that transforms a weight."""

MIN_CHANNELS = 32
"""The fewest input and output channels for which the method is faster."""


class WinogradConvolution:
    """y = W ∗ x + b for a 3 × 3 weight at stride one, on channels-last images."""

    def __init__(self, weight: Tensor, bias: Tensor | None, padding: int) -> None:
        channels, in_channels = weight.shape[:2]
        weight_last = weight.permute(0, 2, 3, 1).contiguous()
        factors = torch.empty(16, channels, in_channels, device=weight.device, dtype=weight.dtype)
        launch(
            winograd_weight_kernel, (-(-channels * in_channels // BLOCK),),
            factors, weight_last, in_channels, channels * in_channels, BLOCK=BLOCK,
        )  # fmt: skip
        self._factors = factors
        self._bias = bias
        self._padding = padding

    def __call__(self, images: Tensor) -> Tensor:
        """Return the convolution of all rows."""
        rows, in_channels, *size = images.shape
        channels = self._factors.shape[1]
        height, width = (side + 2 * self._padding - 2 for side in size)
        result = torch.empty(
            (rows, channels, height, width),
            dtype=images.dtype,
            device=images.device,
            memory_format=torch.channels_last,
        )
        tiles_down, tiles_along = -(-height // 2), -(-width // 2)
        tiles = rows * tiles_down * tiles_along
        most = max(MAX_WORKSPACE_ELEMENTS // (16 * (in_channels + channels)) // TILES, 1) * TILES
        bias = images if self._bias is None else self._bias
        for first in range(0, tiles, most):
            count = min(most, tiles - first)
            spread = images.new_empty(16, count, in_channels)
            launch(
                winograd_input_kernel, (-(-count // TILES), -(-in_channels // WIDTH)),
                spread, images, first, count, in_channels, *size, tiles_down, tiles_along,
                self._padding,
                TILE=TILES, WIDTH=WIDTH,
            )  # fmt: skip
            products = multiply(spread, self._factors)
            launch(
                winograd_output_kernel, (-(-count // TILES), -(-channels // WIDTH)),
                result, products, bias, first, count, channels, height, width, tiles_down,
                tiles_along,
                0 if self._bias is None else channels, TILE=TILES, WIDTH=WIDTH,
            )  # fmt: skip
        return result


def should_use_winograd(weight: Tensor, settings: Any) -> bool:
    """Return whether Winograd's method can compute a convolution and is faster."""
    stride, padding, dilation, groups = settings
    plain = stride == [1, 1] and dilation == [1, 1] and groups == 1
    fits = tuple(weight.shape[2:]) == (3, 3) and padding in ([0, 0], [1, 1], [2, 2])
    return plain and fits and min(weight.shape[:2]) >= MIN_CHANNELS
