"""Triton kernels for the masks: all that happens at a site in one pass over memory, each way.

Tensors are channels-last: element (pixel, channel) of a tensor stands at pixel · stride + channel,
pixels counted over all rows of a stream; the negative stream's pixels follow the positive's. A
program takes a tile of pixels by channels. `HAS_…`, `IS_…` switch parts on and off at compile time.

A logit of infinity marks a closed gate: nothing passes and nothing moves. Where `COMPACT`, logits
are kept in 16 bits and RMSProp's squares in 16 bits, seven of exponent and nine of mantissa,
rounded up or down at random in proportion, so that steps too small for 16 bits count on average.
The randomness is a hash of the element's place in its row and the iteration: a row learned alone
and in a batch rounds alike.
"""

# pyright: basic, reportMissingImports=false

import triton
import triton.language as tl

DECAY = tl.constexpr(0.99)
EPSILON = tl.constexpr(1e-8)
CLOSED = tl.constexpr(6e4)
"""Above every logit that is learned, and below what a closed gate's is in any precision."""

SMALLEST = tl.constexpr(57 << 9)
"""Of RMSProp's squares: 2^-70, whose root is far below EPSILON."""


@triton.jit
def _noise(element, iteration):
    """Sixteen plus fourteen random bits."""
    x = (element * 0x1B873593 + iteration * 0x2C1B3C6D).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x297A2D39
    x = (x ^ (x >> 15)) * 0x5D5C2B1F
    return x ^ (x >> 16)


@triton.jit
def _load_square(squares, at, ok, COMPACT: tl.constexpr):
    if COMPACT:
        code = tl.load(squares + at, ok, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
        square = ((code + SMALLEST) << 14).to(tl.float32, bitcast=True)
    else:
        square = tl.load(squares + at, ok, other=0.0)
    return square


@triton.jit
def _store_square(squares, at, ok, value, noise, COMPACT: tl.constexpr):
    if COMPACT:
        bits = value.to(tl.uint32, bitcast=True) + (noise & 0x3FFF)
        code = (bits >> 14).to(tl.int32) - SMALLEST
        code = tl.minimum(tl.maximum(code, 0), 65535)
        tl.store(squares + at, code.to(tl.uint16).to(tl.int16, bitcast=True), ok)
    else:
        tl.store(squares + at, value, ok)


@triton.jit
def _store_logit(logits, at, ok, value, noise, COMPACT: tl.constexpr):
    if COMPACT:
        bits = value.to(tl.uint32, bitcast=True) + (noise >> 19)
        value = (bits & 0xFFFFE000).to(tl.float32, bitcast=True)
        tl.store(logits + at, value.to(tl.float16), ok)
    else:
        tl.store(logits + at, value, ok)


@triton.jit
def _descend(
    logits, squares, at, ok, logit, change, rate, element, iteration, COMPACT: tl.constexpr
):
    """One step of RMSProp for a tile."""
    noise = _noise(element, iteration)
    square = _load_square(squares, at, ok, COMPACT)
    square = DECAY * square + (1 - DECAY) * change * change
    _store_square(squares, at, ok, square, noise, COMPACT)
    moved = logit - rate * change / (tl.sqrt(square) + EPSILON)
    _store_logit(logits, at, ok & (logit < CLOSED), moved, noise, COMPACT)


@triton.jit
def _gradient(g1, g2, tail, seeds, p, c, row, ok, channels, g1_stride, g2_stride,
              HAS_1: tl.constexpr, HAS_2: tl.constexpr, HAS_TAIL: tl.constexpr):  # fmt: skip
    """The gradient in what a site puts out: up to two parts, and the seeds' share of the tail."""
    g = tl.zeros(ok.shape, tl.float32)
    if HAS_1:
        g += tl.load(g1 + p * g1_stride + c, ok, other=0.0).to(tl.float32)
    if HAS_2:
        g += tl.load(g2 + p * g2_stride + c, ok, other=0.0).to(tl.float32)
    if HAS_TAIL:
        g += tl.load(tail + p * channels + c, ok, other=0.0) * tl.load(seeds + row)
    return g


@triton.jit
def masked_forward(
    h, z1, z2, scale, shift, logits, slope, offset,
    pixels, channels, h_stride, z1_stride, z2_stride,
    IS_SHARED1: tl.constexpr, IS_SHARED2: tl.constexpr, HAS_2: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_SLOPE: tl.constexpr,
    HAS_OFFSET: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Both streams of h = (slope ⊙ (scale z1 + z2 + shift) + offset) ⊙ mask."""
    p = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (p < pixels) & (c < channels)
    at = p * channels + c
    logit = tl.load(logits + at, ok, other=0.0).to(tl.float32)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    positive = tl.load(z1 + p * z1_stride + c, ok, other=0.0).to(tl.float32)
    negative = positive
    if not IS_SHARED1:
        negative = tl.load(z1 + (pixels + p) * z1_stride + c, ok, other=0.0).to(tl.float32)
    if HAS_SCALE:
        by = tl.load(scale + c, c < channels, other=0.0)
        positive *= by
        negative *= by
    if HAS_2:
        more = tl.load(z2 + p * z2_stride + c, ok, other=0.0).to(tl.float32)
        positive += more
        if not IS_SHARED2:
            more = tl.load(z2 + (pixels + p) * z2_stride + c, ok, other=0.0).to(tl.float32)
        negative += more
    if HAS_SHIFT:
        by = tl.load(shift + c, c < channels, other=0.0)
        positive += by
        negative += by
    if HAS_SLOPE:
        by = tl.load(slope + at, ok, other=0.0).to(tl.float32)
        positive *= by
        negative *= by
    if HAS_OFFSET:
        by = tl.load(offset + at, ok, other=0.0).to(tl.float32)
        positive += by
        negative += by
    kind = h.dtype.element_ty
    tl.store(h + p * h_stride + c, tl.where(is_open, positive * mask, 0.0).to(kind), ok)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + (pixels + p) * h_stride + c, negative.to(kind), ok)


@triton.jit
def masked_backward(
    dz, g1, g2, tail, seeds, streams, h, scale, logits, squares, slope, iteration, rate,
    pixels, rows, per_row, channels, g1_stride, g2_stride, h_stride,
    HAS_DZ: tl.constexpr, HAS_1: tl.constexpr, HAS_2: tl.constexpr, HAS_TAIL: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_SLOPE: tl.constexpr, IS_BOTH: tl.constexpr,
    COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient in z from that in h, and RMSProp's step of the masks.

    Gradients are of one stream a row, which `streams` names, or of both, stacked (`IS_BOTH`).
    """
    p = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (p < pixels) & (c < channels)
    at = p * channels + c
    row = tl.minimum(p // per_row, rows - 1)
    logit = tl.load(logits + at, ok, other=0.0).to(tl.float32)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.where(is_open, 1.0, 0.0)
    if HAS_SLOPE:
        by *= tl.load(slope + at, ok, other=0.0).to(tl.float32)
    if HAS_SCALE:
        by *= tl.load(scale + c, c < channels, other=0.0)
    if IS_BOTH:
        g = _gradient(g1, g2, tail, seeds, p, c, row, ok, channels, g1_stride, g2_stride,
                      HAS_1, HAS_2, False)  # fmt: skip
        n = _gradient(g1, g2, tail, seeds, pixels + p, c, row, ok, channels, g1_stride, g2_stride,
                      HAS_1, HAS_2, False)  # fmt: skip
        if HAS_TAIL:
            part = tl.load(tail + at, ok, other=0.0)
            g += part * tl.load(seeds + row)
            n += part * tl.load(seeds + rows + row)
        change = g * (1.0 - mask) * tl.load(h + p * h_stride + c, ok, other=0.0).to(tl.float32)
        below = tl.load(h + (pixels + p) * h_stride + c, ok, other=0.0).to(tl.float32)
        change -= n * mask * below
        if HAS_DZ:
            kind = dz.dtype.element_ty
            tl.store(dz + at, (g * mask * by).to(kind), ok)
            tl.store(dz + pixels * channels + at, (n * (1.0 - mask) * by).to(kind), ok)
    else:
        stream = tl.load(streams + row)
        g = _gradient(g1, g2, tail, seeds, p, c, row, ok, channels, g1_stride, g2_stride,
                      HAS_1, HAS_2, HAS_TAIL)  # fmt: skip
        here = tl.load(h + (p + stream * pixels) * h_stride + c, ok, other=0.0).to(tl.float32)
        change = g * here * tl.where(stream == 0, 1.0 - mask, -mask)
        if HAS_DZ:
            passed = g * by * tl.where(stream == 0, mask, 1.0 - mask)
            tl.store(dz + at, passed.to(dz.dtype.element_ty), ok)
    change = tl.where(is_open, change, 0.0)
    element = ((p - row * per_row) * channels + c).to(tl.int32)
    now = tl.load(iteration)
    _descend(logits, squares, at, ok, logit, change, rate, element, now, COMPACT)


@triton.jit
def _winner(winners, p, c, ok, channels, height, width, out_height, out_width,
            KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr):  # fmt: skip
    """The pixel that won the window `p`, for every channel."""
    offset = tl.load(winners + p * channels + c, ok, other=0).to(tl.int32)
    row = p // (out_height * out_width)
    y = p // out_width % out_height * STRIDE - PADDING + offset // KERNEL
    x = p % out_width * STRIDE - PADDING + offset % KERNEL
    return (row * height + y) * width + x


@triton.jit
def pooled_forward(
    h, z, shift, logits, winners,
    pixels, windows, channels, height, width, out_height, out_width, z_stride, h_stride,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    IS_SHARED: tl.constexpr, HAS_SHIFT: tl.constexpr, AT_WINDOWS: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Both streams past a site and the max-pooling behind it: only x's winners are read.

    `AT_WINDOWS`: windows do not overlap, and logits are kept for winners alone, by window.
    """
    p = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (p < windows) & (c < channels)
    source = _winner(winners, p, c, ok, channels, height, width, out_height, out_width,
                     KERNEL, STRIDE, PADDING)  # fmt: skip
    at = p * channels + c
    if not AT_WINDOWS:
        at = source * channels + c
    logit = tl.load(logits + at, ok, other=0.0).to(tl.float32)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    positive = tl.load(z + source * z_stride + c, ok, other=0.0).to(tl.float32)
    negative = positive
    if not IS_SHARED:
        negative = tl.load(z + (pixels + source) * z_stride + c, ok, other=0.0).to(tl.float32)
    if HAS_SHIFT:
        by = tl.load(shift + c, c < channels, other=0.0)
        positive += by
        negative += by
    kind = h.dtype.element_ty
    tl.store(h + p * h_stride + c, tl.where(is_open, positive * mask, 0.0).to(kind), ok)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + (windows + p) * h_stride + c, negative.to(kind), ok)


@triton.jit
def pooled_backward_by_window(
    dz, g1, g2, tail, seeds, streams, h, logits, squares, winners, iteration, rate,
    pixels, windows, rows, channels, height, width, out_height, out_width,
    g1_stride, g2_stride, h_stride,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    HAS_DZ: tl.constexpr, HAS_1: tl.constexpr, HAS_2: tl.constexpr, HAS_TAIL: tl.constexpr,
    IS_BOTH: tl.constexpr, COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Back through windows that do not overlap: a window's winner gets all, the others nothing.

    Pixels outside all windows are not written: the caller's `dz` is zero there.
    """
    p = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (p < windows) & (c < channels)
    at = p * channels + c
    per_row = out_height * out_width
    row = tl.minimum(p // per_row, rows - 1)
    logit = tl.load(logits + at, ok, other=0.0).to(tl.float32)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.where(is_open, 1.0, 0.0)
    stream = tl.load(streams + row)
    if IS_BOTH:
        stream = stream * 0
    g = _gradient(g1, g2, tail, seeds, p, c, row, ok, channels, g1_stride, g2_stride,
                  HAS_1, HAS_2, HAS_TAIL)  # fmt: skip
    here = tl.load(h + (p + stream * windows) * h_stride + c, ok, other=0.0).to(tl.float32)
    change = g * here * tl.where(stream == 0, 1.0 - mask, -mask)
    passed = g * by * tl.where(stream == 0, mask, 1.0 - mask)
    below = passed
    if IS_BOTH:
        n = _gradient(g1, g2, tail, seeds, windows + p, c, row, ok, channels, g1_stride,
                      g2_stride, HAS_1, HAS_2, False)  # fmt: skip
        if HAS_TAIL:
            n += tl.load(tail + at, ok, other=0.0) * tl.load(seeds + rows + row)
        under = tl.load(h + (windows + p) * h_stride + c, ok, other=0.0).to(tl.float32)
        change -= n * under * mask
        below = n * by * (1.0 - mask)
    if HAS_DZ:
        won = tl.load(winners + at, ok, other=0).to(tl.int32)
        kind = dz.dtype.element_ty
        y0 = p // out_width % out_height * STRIDE - PADDING
        x0 = p % out_width * STRIDE - PADDING
        for k in tl.static_range(KERNEL * KERNEL):
            y = y0 + k // KERNEL
            x = x0 + k % KERNEL
            inside = ok & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            to = ((row * height + y) * width + x) * channels + c
            tl.store(dz + to, tl.where(won == k, passed, 0.0).to(kind), inside)
            if IS_BOTH:
                to += pixels * channels
                tl.store(dz + to, tl.where(won == k, below, 0.0).to(kind), inside)
    change = tl.where(is_open, change, 0.0)
    element = ((p - row * per_row) * channels + c).to(tl.int32)
    now = tl.load(iteration)
    _descend(logits, squares, at, ok, logit, change, rate, element, now, COMPACT)


@triton.jit
def _from_windows(g1, g2, winners, row, y, x, c, ok, channels, rows, height, width,
                  out_height, out_width, g1_stride, g2_stride, first,
                  KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                  HAS_2: tl.constexpr):  # fmt: skip
    """What a pixel gets of every window that it won; `first` is the first window of a stream."""
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
        there = there & (won == dy * KERNEL + dx)
        g += tl.load(g1 + (first + window) * g1_stride + c, there, other=0.0).to(tl.float32)
        if HAS_2:
            g += tl.load(g2 + (first + window) * g2_stride + c, there, other=0.0).to(tl.float32)
    return g


@triton.jit
def pooled_backward_by_pixel(
    dz, g1, g2, streams, z, shift, logits, squares, winners, iteration, rate,
    pixels, windows, rows, channels, height, width, out_height, out_width,
    g1_stride, g2_stride, z_stride,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    HAS_DZ: tl.constexpr, HAS_2: tl.constexpr, HAS_SHIFT: tl.constexpr,
    IS_SHARED: tl.constexpr, IS_BOTH: tl.constexpr, COMPACT: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Back through windows that overlap: every pixel gathers from the windows it won."""
    p = (tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (p < pixels) & (c < channels)
    at = p * channels + c
    row = tl.minimum(p // (height * width), rows - 1)
    y = p // width % height
    x = p % width
    logit = tl.load(logits + at, ok, other=0.0).to(tl.float32)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.where(is_open, 1.0, 0.0)
    stream = tl.load(streams + row)
    if IS_BOTH:
        stream = stream * 0
    g = _from_windows(g1, g2, winners, row, y, x, c, ok, channels, rows, height, width,
                      out_height, out_width, g1_stride, g2_stride, windows * 0,
                      KERNEL, STRIDE, PADDING, HAS_2)  # fmt: skip
    added = tl.zeros(ok.shape, tl.float32)
    if HAS_SHIFT:
        added += tl.load(shift + c, c < channels, other=0.0)
    source = p + stream * pixels
    if IS_SHARED:
        source = p
    here = tl.load(z + source * z_stride + c, ok, other=0.0).to(tl.float32) + added
    change = g * here * mask * (1.0 - mask) * tl.where(stream == 0, 1.0, -1.0)
    if HAS_DZ:
        passed = g * by * tl.where(stream == 0, mask, 1.0 - mask)
        tl.store(dz + at, passed.to(dz.dtype.element_ty), ok)
    if IS_BOTH:
        n = _from_windows(g1, g2, winners, row, y, x, c, ok, channels, rows, height, width,
                          out_height, out_width, g1_stride, g2_stride, windows,
                          KERNEL, STRIDE, PADDING, HAS_2)  # fmt: skip
        if not IS_SHARED:
            here = tl.load(z + (pixels + p) * z_stride + c, ok, other=0.0).to(tl.float32) + added
        change -= n * here * mask * (1.0 - mask)
        if HAS_DZ:
            below = n * by * (1.0 - mask)
            tl.store(dz + pixels * channels + at, below.to(dz.dtype.element_ty), ok)
    change = tl.where(is_open, change, 0.0)
    element = ((p - row * height * width) * channels + c).to(tl.int32)
    now = tl.load(iteration)
    _descend(logits, squares, at, ok, logit, change, rate, element, now, COMPACT)


@triton.jit
def partial_scores(
    sums, h, tail, elements, rows, first, parts_a_row,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """⟨tail, h⟩ of every row and stream, in `PARTS` partial sums."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    start = row.to(tl.int64) * elements
    of = (row % rows).to(tl.int64) * elements
    for block in range(BLOCKS):
        k = (block * PARTS + part) * BLOCK + tl.arange(0, BLOCK)
        ok = k < elements
        value = tl.load(h + start + k, ok, other=0.0).to(tl.float32)
        total += value * tl.load(tail + of + k, ok, other=0.0)
    tl.store(sums + row * parts_a_row + first + part, tl.sum(total, 0))


@triton.jit
def terms_and_seeds(
    terms, seeds, streams, iteration, sums, constant, output, rows, parts_a_row,
    POSITIVE: tl.constexpr, NEGATIVE: tl.constexpr, NUISANCE: tl.constexpr,
    IS_BOTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """y⁺ and y⁻ of a row from their partial sums, and what the loss asks of each stream."""
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
    tl.store(terms + row, positive)
    tl.store(terms + rows + row, negative)
    stream = tl.where(above != 0, 0, 1)
    tl.store(streams + row, stream)
    if IS_BOTH:
        tl.store(seeds + row, above)
        tl.store(seeds + rows + row, below)
    else:
        tl.store(seeds + row, tl.where(stream == 0, above, below))
    if row == 0:
        tl.store(iteration, tl.load(iteration) + 1)
