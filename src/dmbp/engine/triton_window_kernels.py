"""Triton kernels for windows over images: winners of a pooling, and what pixels get of windows.

Images are channels-last and dense. Sizes of windows are arguments like others: these kernels run
before and after the iterations, and one that suits all networks is compiled once.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


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
