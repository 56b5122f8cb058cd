"""Triton kernels for the masks: all that happens at a site in one pass over memory, each way.

Tensors are channels-last: element (pixel, channel) of a tensor stands at pixel · stride + channel,
pixels counted over all rows of a stream; the negative stream's pixels follow the positive's. A
program takes a tile of pixels by channels. What may be missing comes with its number of channels,
zero where it is, so that one compiled kernel serves with and without; what takes different code
(`HAS_…`, `IS_…`) is settled at compile time. Only within a tile are places counted in 32 bits.

Joining a 1 × 1 convolution to its site in one kernel was tried and is no gain: the matrix product
and a dozen tensors at its end do not fit the registers together (ResNet50, batch of 64 on an H200:
13 ms an iteration at best against 8.5).
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


@triton.jit(do_not_specialize=["pixels", "z1_streams", "z2_streams"])
def masked_forward(
    h, z1, z2, scale, shift, logits, slope, offset,
    pixels, channels, h_stride, z1_stride, z2_stride,
    z1_streams, z2_streams, z1_apart, z2_channels, scale_channels, shift_channels,
    HAS_SLOPE: tl.constexpr, HAS_OFFSET: tl.constexpr, IS_COMPACT: tl.constexpr,
    SUMMANDS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Both streams of h = (slope ⊙ (scale z1 + z2 + shift) + offset) ⊙ mask.

    `z1_streams`, `z2_streams`: one, or zero where both streams share the value. z1 comes as
    `SUMMANDS` tensors, `z1_apart` elements one from the next.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    below = pixels.to(tl.int64) + first
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (first + q < pixels) & (c < channels)
    at = q * channels + c
    logit = load_logit(logits + first * channels, at, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.load(scale + c, c < scale_channels, other=1.0)
    added = tl.load(shift + c, c < shift_channels, other=0.0)
    positive = load(z1 + first * z1_stride, q * z1_stride + c, ok)
    other = first + z1_streams * pixels.to(tl.int64)
    negative = load(z1 + other * z1_stride, q * z1_stride + c, ok)
    for k in tl.static_range(1, SUMMANDS):
        more = z1 + k * z1_apart
        positive += load(more + first * z1_stride, q * z1_stride + c, ok)
        negative += load(more + other * z1_stride, q * z1_stride + c, ok)
    positive *= by
    negative *= by
    other = first + z2_streams * pixels.to(tl.int64)
    positive += added + tile_of(z2, first, q, c, ok, z2_stride, z2_channels)
    negative += added + tile_of(z2, other, q, c, ok, z2_stride, z2_channels)
    if HAS_SLOPE:
        by = load(slope + first * channels, at, ok)
        positive *= by
        negative *= by
    if HAS_OFFSET:
        by = load(offset + first * channels, at, ok)
        positive += by
        negative += by
    is_open = logit < CLOSED
    kind = h.dtype.element_ty
    positive = tl.where(is_open, positive * mask, 0.0)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + first * h_stride + q * h_stride + c, positive.to(kind), ok)
    tl.store(h + below * h_stride + q * h_stride + c, negative.to(kind), ok)


@triton.jit(do_not_specialize=["pixels", "rows", "per_row"])
def masked_backward(
    dz, g1, g2, tail, seeds, products, streams, h, scale, logits, squares, slope, iteration, rate,
    pixels, rows, per_row, channels, g1_stride, g2_stride, h_stride,
    dz_channels, g1_channels, g2_channels, tail_channels, scale_channels, g1_apart,
    HAS_SLOPE: tl.constexpr, IS_BOTH: tl.constexpr, IS_COMPACT: tl.constexpr,
    SUMMANDS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient in z from that in h, and RMSProp's step of the masks.

    The gradient in h is g1 + g2 + tail · seed, of one stream a row, which `streams` names, or of
    both, stacked (`IS_BOTH`), times the row's scale; `products` are those of gradient and h. g1
    comes as `SUMMANDS` tensors, `g1_apart` elements one from the next.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    all_pixels = pixels.to(tl.int64)
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (first + q < pixels) & (c < channels)
    at = q * channels + c
    pixel = tl.program_id(0) * TILE + q
    row = tl.minimum(pixel // per_row, rows - 1)
    logits += first * channels
    squares += first * channels
    dz += first * channels
    logit = load_logit(logits, at, ok, IS_COMPACT)
    square = load_square(squares, at, ok, IS_COMPACT)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.load(scale + c, c < scale_channels, other=1.0)
    if HAS_SLOPE:
        by = by * load(slope + first * channels, at, ok)
    by = tl.where(is_open, by, 0.0)
    onwards = ok & (c < dz_channels)
    kind = dz.dtype.element_ty
    last = tile_of(tail, first, q, c, ok, channels, tail_channels)
    g = last * tl.load(seeds + row)
    g += tile_of(g1, first, q, c, ok, g1_stride, g1_channels)
    for k in tl.static_range(1, SUMMANDS):
        g += tile_of(g1 + k * g1_apart, first, q, c, ok, g1_stride, g1_channels)
    g += tile_of(g2, first, q, c, ok, g2_stride, g2_channels)
    g = within(g, kind)
    if IS_BOTH:
        under = first + all_pixels
        n = last * tl.load(seeds + rows + row)
        n += tile_of(g1, under, q, c, ok, g1_stride, g1_channels)
        for k in tl.static_range(1, SUMMANDS):
            n += tile_of(g1 + k * g1_apart, under, q, c, ok, g1_stride, g1_channels)
        n += tile_of(g2, under, q, c, ok, g2_stride, g2_channels)
        n = within(n, kind)
        change = g * (1.0 - mask) * load(h + first * h_stride, q * h_stride + c, ok)
        change -= n * mask * load(h + under * h_stride, q * h_stride + c, ok)
        tl.store(dz + at, within(g * mask * by, kind).to(kind), onwards)
        below = within(n * (1.0 - mask) * by, kind)
        tl.store(dz + all_pixels * channels + at, below.to(kind), onwards)
    else:
        stream = tl.load(streams + row)
        here = h + first * h_stride + stream * (all_pixels * h_stride)
        change = g * load(here, q * h_stride + c, ok) * tl.where(stream == 0, 1.0 - mask, -mask)
        passed = g * by * tl.where(stream == 0, mask, 1.0 - mask)
        tl.store(dz + at, within(passed, kind).to(kind), onwards)
    change = tl.where(is_open, change / tl.load(products + row), 0.0)
    element = (pixel - row * per_row) * channels + c
    now = tl.load(iteration)
    descend(logits, squares, at, ok, logit, square, change, rate, element, now, IS_COMPACT)


@triton.jit(do_not_specialize=["rows", "first", "blocks"])
def partial_scores(
    sums, iteration, h, tail, elements, rows, first, parts_a_row, blocks,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """⟨tail, h⟩ of every row and stream, in `PARTS` partial sums; the iteration is counted."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    start = row.to(tl.int64) * elements
    of = (row % rows).to(tl.int64) * elements
    for block in range(blocks):
        k = (block * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        ok = k < elements
        value = tl.load(h + start + k, ok, other=0.0).to(tl.float32)
        total += value * tl.load(tail + of + k, ok, other=0.0)
    tl.store(sums + row * parts_a_row + first + part, tl.sum(total, 0))
    if row + part + first == 0:
        tl.store(iteration, tl.load(iteration) + 1)


@triton.jit(do_not_specialize=["rows"])
def terms_and_seeds(
    past, since, seeds, starts, sizes, scales, products, streams, iteration, sums, constant, output,
    unit, rows, parts_a_row,
    POSITIVE: tl.constexpr, NEGATIVE: tl.constexpr, NUISANCE: tl.constexpr,
    IS_BOTH: tl.constexpr, IS_SCALED: tl.constexpr, PARTS: tl.constexpr,
    PAST: tl.constexpr,
):  # fmt: skip
    """y⁺ and y⁻ of a row from their partial sums, and what the loss asks of each stream.

    Where gradients are scaled, their scale follows the terms (`scaling.followed`).
    """
    row = tl.program_id(0)
    k = tl.arange(0, PARTS)
    ok = k < parts_a_row
    bias = tl.load(constant + row)
    positive = bias + tl.sum(tl.load(sums + row * parts_a_row + k, ok, other=0.0), 0)
    negative = bias + tl.sum(tl.load(sums + (rows + row) * parts_a_row + k, ok, other=0.0), 0)
    nuisance = tl.load(output + row) - positive - negative
    side = tl.where(nuisance < 0, NUISANCE, -NUISANCE)
    above = POSITIVE + side
    below = NEGATIVE + side
    place = (tl.load(iteration) - 1 - tl.load(since)) % PAST
    terms = past + place * 2 * rows + row
    tl.store(terms, positive)
    tl.store(terms + rows, negative)
    stream = tl.where(above != 0, 0, 1)
    tl.store(streams + row, stream)
    by = tl.load(starts + row)
    if IS_SCALED:
        size = tl.abs(positive) + tl.abs(negative)
        first = tl.load(sizes + row)
        first = tl.where(first > 0, first, size)
        growth = tl.maximum(size / tl.maximum(first, 1e-30), 1.0)
        by *= tl.exp2(-tl.floor(tl.log2(growth) / 2))
        tl.store(sizes + row, first)
        tl.store(scales + row, by)
        tl.store(products + row, by * unit)
    if IS_BOTH:
        tl.store(seeds + row, above * by)
        tl.store(seeds + rows + row, below * by)
    else:
        tl.store(seeds + row, tl.where(stream == 0, above, below) * by)
