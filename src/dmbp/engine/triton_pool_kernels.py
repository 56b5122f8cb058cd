"""Triton kernels for a ReLU with the max-pooling behind it: only x's winners are touched.

Tensors and arguments are as in `triton_kernels`.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from dmbp.engine.triton_state import (
    CLOSED,
    descend,
    load,
    load_logit,
    load_square,
    tile_of,
    within,
)


@triton.jit(do_not_specialize=["pixels", "windows", "height", "width", "out_height", "out_width",
                               "z_streams"])  # fmt: skip
def pooled_forward(
    h, z, shift, logits, winners,
    pixels, windows, channels, height, width, out_height, out_width, z_stride,
    z_streams, shift_channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    AT_WINDOWS: tl.constexpr, IS_COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Both streams past a site and the max-pooling behind it: only x's winners are read.

    `AT_WINDOWS`: windows do not overlap, and logits are kept for winners alone, by window.
    """
    first = tl.program_id(0) * TILE
    start = first.to(tl.int64) * channels
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    window = first + q
    ok = (window < windows) & (c < channels)
    at = q * channels + c
    won = tl.load(winners + start + at, ok, other=0).to(tl.int32)
    first_row = first // (out_height * out_width)
    before = first_row.to(tl.int64) * height * width
    row = window // (out_height * out_width) - first_row
    y = window // out_width % out_height * STRIDE - PADDING + won // KERNEL
    x = window % out_width * STRIDE - PADDING + won % KERNEL
    source = (row * height + y) * width + x
    if AT_WINDOWS:
        logit = load_logit(logits + start, at, ok, IS_COMPACT)
    else:
        logit = load_logit(logits + before * channels, source * channels + c, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    added = tl.load(shift + c, c < shift_channels, other=0.0)
    positive = load(z + before * z_stride, source * z_stride + c, ok) + added
    before += z_streams * pixels.to(tl.int64)
    negative = load(z + before * z_stride, source * z_stride + c, ok) + added
    is_open = logit < CLOSED
    kind = h.dtype.element_ty
    tl.store(h + start + at, tl.where(is_open, positive * mask, 0.0).to(kind), ok)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + windows.to(tl.int64) * channels + start + at, negative.to(kind), ok)


@triton.jit(do_not_specialize=["pixels", "windows", "rows", "height", "width", "out_height",
                               "out_width"])  # fmt: skip
def pooled_backward_by_window(
    dz, g1, g2, tail, seeds, products, streams, h, logits, squares, winners, iteration, rate,
    pixels, windows, rows, channels, height, width, out_height, out_width,
    g1_stride, g2_stride, dz_channels, g1_channels, g2_channels, tail_channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    IS_BOTH: tl.constexpr, IS_COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Back through windows that do not overlap: a window's winner gets all, the others nothing.

    Pixels outside all windows are not written: the caller's `dz` is zero there.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    under = first + windows
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    window = tl.program_id(0) * TILE + q
    ok = (window < windows) & (c < channels)
    at = q * channels + c
    per_row = out_height * out_width
    row = tl.minimum(window // per_row, rows - 1)
    logits += first * channels
    squares += first * channels
    logit = load_logit(logits, at, ok, IS_COMPACT)
    square = load_square(squares, at, ok, IS_COMPACT)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    won = tl.load(winners + first * channels + at, ok, other=0).to(tl.int32)
    last = tile_of(tail, first, q, c, ok, channels, tail_channels)
    g = last * tl.load(seeds + row)
    g += tile_of(g1, first, q, c, ok, g1_stride, g1_channels)
    g += tile_of(g2, first, q, c, ok, g2_stride, g2_channels)
    kind = dz.dtype.element_ty
    g = within(g, kind)
    if IS_BOTH:
        n = last * tl.load(seeds + rows + row)
        n += tile_of(g1, under, q, c, ok, g1_stride, g1_channels)
        n += tile_of(g2, under, q, c, ok, g2_stride, g2_channels)
        n = within(n, kind)
        change = g * (1.0 - mask) * load(h + first * channels, at, ok)
        change -= n * mask * load(h + under * channels, at, ok)
        passed = tl.where(is_open, g * mask, 0.0)
        passed_below = tl.where(is_open, n * (1.0 - mask), 0.0)
    else:
        stream = tl.load(streams + row)
        here = h + first * channels + stream * (windows.to(tl.int64) * channels)
        change = g * load(here, at, ok) * tl.where(stream == 0, 1.0 - mask, -mask)
        passed = tl.where(is_open, g * tl.where(stream == 0, mask, 1.0 - mask), 0.0)
        passed_below = passed
    first_row = tl.program_id(0) * TILE // per_row
    dz += first_row.to(tl.int64) * height * width * channels
    y0 = window // out_width % out_height * STRIDE - PADDING
    x0 = window % out_width * STRIDE - PADDING
    for k in tl.static_range(KERNEL * KERNEL):
        y = y0 + k // KERNEL
        x = x0 + k % KERNEL
        inside = ok & (y >= 0) & (y < height) & (x >= 0) & (x < width) & (c < dz_channels)
        to = (((row - first_row) * height + y) * width + x) * channels + c
        tl.store(dz + to, tl.where(won == k, passed, 0.0).to(kind), inside)
        if IS_BOTH:
            lower = dz + pixels.to(tl.int64) * channels
            tl.store(lower + to, tl.where(won == k, passed_below, 0.0).to(kind), inside)
    change = tl.where(is_open, change / tl.load(products + row), 0.0)
    element = (window - row * per_row) * channels + c
    now = tl.load(iteration)
    descend(logits, squares, at, ok, logit, square, change, rate, element, now, IS_COMPACT)


@triton.jit
def _from_windows(g1, g2, winners, row, y, x, c, ok, channels, out_height, out_width,
                  g1_stride, g2_stride, g2_channels,
                  KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr):  # fmt: skip
    """What a pixel gets of every window that it won."""
    g = tl.zeros(ok.shape, tl.float32)
    reach: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
    for k in tl.static_range(reach * reach):
        oy = (y + PADDING) // STRIDE - k // reach
        ox = (x + PADDING) // STRIDE - k % reach
        dy = y + PADDING - oy * STRIDE
        dx = x + PADDING - ox * STRIDE
        there = (oy >= 0) & (oy < out_height) & (ox >= 0) & (ox < out_width)
        there = ok & there & (dy < KERNEL) & (dx < KERNEL)
        window = (row * out_height + oy) * out_width + ox
        won = tl.load(winners + window * channels + c, there, other=255).to(tl.int32)
        part = load(g1, window * g1_stride + c, there)
        part += load(g2, window * g2_stride + c, there & (c < g2_channels))
        g += tl.where(won == dy * KERNEL + dx, part, 0.0)
    return g


@triton.jit(do_not_specialize=["pixels", "windows", "rows", "height", "width", "out_height",
                               "out_width", "z_streams"])  # fmt: skip
def pooled_backward_by_pixel(
    dz, g1, g2, products, streams, z, shift, logits, squares, winners, iteration, rate,
    pixels, windows, rows, channels, height, width, out_height, out_width,
    g1_stride, g2_stride, z_stride, z_streams, dz_channels, g2_channels, shift_channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    IS_BOTH: tl.constexpr, IS_COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Back through windows that overlap: every pixel gathers from the windows it won."""
    first = tl.program_id(0).to(tl.int64) * TILE
    all_pixels = pixels.to(tl.int64)
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    pixel = tl.program_id(0) * TILE + q
    ok = (pixel < pixels) & (c < channels)
    at = q * channels + c
    per_row = height * width
    row = tl.minimum(pixel // per_row, rows - 1)
    first_row = tl.program_id(0) * TILE // per_row
    first_window = first_row.to(tl.int64) * out_height * out_width
    y = pixel // width % height
    x = pixel % width
    logits += first * channels
    squares += first * channels
    dz += first * channels
    winners += first_window * channels
    logit = load_logit(logits, at, ok, IS_COMPACT)
    square = load_square(squares, at, ok, IS_COMPACT)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    stream = tl.load(streams + row)
    if IS_BOTH:
        stream = stream * 0
    g = _from_windows(g1 + first_window * g1_stride, g2 + first_window * g2_stride, winners,
                      row - first_row, y, x, c, ok, channels, out_height, out_width,
                      g1_stride, g2_stride, g2_channels, KERNEL, STRIDE, PADDING)  # fmt: skip
    kind = dz.dtype.element_ty
    g = within(g, kind)
    added = tl.load(shift + c, c < shift_channels, other=0.0)
    source = z + first * z_stride + (stream * z_streams) * (all_pixels * z_stride)
    here = load(source, q * z_stride + c, ok) + added
    change = g * here * mask * (1.0 - mask) * tl.where(stream == 0, 1.0, -1.0)
    onwards = ok & (c < dz_channels)
    passed = tl.where(is_open, g * tl.where(stream == 0, mask, 1.0 - mask), 0.0)
    tl.store(dz + at, passed.to(kind), onwards)
    if IS_BOTH:
        under = first_window + windows
        n = _from_windows(g1 + under * g1_stride, g2 + under * g2_stride, winners,
                          row - first_row, y, x, c, ok, channels, out_height, out_width,
                          g1_stride, g2_stride, g2_channels, KERNEL, STRIDE, PADDING)  # fmt: skip
        n = within(n, kind)
        source = z + (first + z_streams * all_pixels) * z_stride
        change -= n * (load(source, q * z_stride + c, ok) + added) * mask * (1.0 - mask)
        passed = tl.where(is_open, n * (1.0 - mask), 0.0)
        tl.store(dz + all_pixels * channels + at, passed.to(kind), onwards)
    change = tl.where(is_open, change / tl.load(products + row), 0.0)
    element = (pixel - row * per_row) * channels + c
    now = tl.load(iteration)
    descend(logits, squares, at, ok, logit, square, change, rate, element, now, IS_COMPACT)
