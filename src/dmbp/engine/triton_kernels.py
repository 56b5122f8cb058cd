"""Triton kernels for the masks: all that happens at a site in one pass over memory, each way.

Tensors are channels-last: element (pixel, channel) of a tensor stands at pixel · stride + channel,
pixels counted over all rows of a stream; the negative stream's pixels follow the positive's. A
program takes a tile of pixels by channels. What may be missing comes with its number of channels,
zero where it is, so that one compiled kernel serves with and without; what takes different code
(`HAS_…`, `IS_…`) is settled at compile time. Only within a tile are places counted in 32 bits.

A logit beyond all others marks a closed gate: nothing passes and nothing moves. Where `IS_COMPACT`,
logits are kept in 16 bits, as multiples of 1/2048 up to ±16, and RMSProp's squares in 16 bits,
seven of exponent and nine of mantissa; both are rounded up or down at random in proportion, so that
steps too small for 16 bits count on average. The randomness is a hash of the element's place in its
row and the iteration: a row learned alone and in a batch rounds alike.

Activations in float16 would be rounded eight times less than in bfloat16, but gradients span more
than it can tell apart: tiny ones count as much as large ones, since RMSProp divides each by its own
size (masks of ResNet50 then correlate 0.993 with single precision's, against 0.9997).

Joining a 1 × 1 convolution to its site in one kernel was tried and is no gain: the matrix product
and a dozen tensors at its end do not fit the registers together (ResNet50, batch of 64 on an H200:
13 ms an iteration at best against 8.5).
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

DECAY = tl.constexpr(0.99)
EPSILON = tl.constexpr(1e-8)
CLOSED = tl.constexpr(6e4)
"""Above every logit that is learned, and below what a closed gate's is read as."""

CLOSED_CODE = tl.constexpr(32767)
CODES = tl.constexpr(2048.0)
"""To the unit, of logits in 16 bits."""

SMALLEST = tl.constexpr(57 << 9)
"""Of RMSProp's squares: 2^-70, whose root is far below EPSILON."""


@triton.jit
def _noise(element, iteration):
    """Random bits: the lowest fourteen and the highest thirteen are used."""
    x = (element * 0x1B873593 + iteration * 0x2C1B3C6D).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x297A2D39
    x = (x ^ (x >> 15)) * 0x5D5C2B1F
    return x ^ (x >> 16)


@triton.jit
def _load_square(squares, at, ok, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        code = tl.load(squares + at, ok, other=0).to(tl.uint16, bitcast=True).to(tl.uint32)
        square = ((code + SMALLEST) << 14).to(tl.float32, bitcast=True)
    else:
        square = tl.load(squares + at, ok, other=0.0)
    return square


@triton.jit
def _store_square(squares, at, ok, value, noise, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        bits = value.to(tl.uint32, bitcast=True) + (noise & 0x3FFF)
        code = (bits >> 14).to(tl.int32) - SMALLEST
        code = tl.minimum(tl.maximum(code, 0), 65535)
        tl.store(squares + at, code.to(tl.uint16).to(tl.int16, bitcast=True), ok)
    else:
        tl.store(squares + at, value, ok)


@triton.jit
def _load_logit(logits, at, ok, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        code = tl.load(logits + at, ok, other=0)
        logit = tl.where(code == CLOSED_CODE, 1e9, code.to(tl.float32) / CODES)
    else:
        logit = tl.load(logits + at, ok, other=0.0)
    return logit


@triton.jit
def _store_logit(logits, at, ok, value, noise, IS_COMPACT: tl.constexpr):
    if IS_COMPACT:
        code = tl.floor(value * CODES + (noise >> 19).to(tl.float32) / 8192.0)
        code = tl.minimum(tl.maximum(code, -32766.0), 32766.0)
        tl.store(logits + at, code.to(tl.int16), ok)
    else:
        tl.store(logits + at, value, ok)


@triton.jit
def _descend(
    logits, squares, at, ok, logit, change, rate, element, iteration, IS_COMPACT: tl.constexpr
):
    """One step of RMSProp for a tile."""
    noise = _noise(element, iteration)
    square = _load_square(squares, at, ok, IS_COMPACT)
    square = DECAY * square + (1 - DECAY) * change * change
    _store_square(squares, at, ok, square, noise, IS_COMPACT)
    moved = logit - rate * change / (tl.sqrt(square) + EPSILON)
    _store_logit(logits, at, ok & (logit < CLOSED), moved, noise, IS_COMPACT)


@triton.jit
def _load(tensor, at, ok):
    return tl.load(tensor + at, ok, other=0.0).to(tl.float32)


@triton.jit
def _part(tensor, first, q, c, ok, stride, channels):
    """A tile of a tensor that may be missing; `first` is the tile's first pixel."""
    return _load(tensor + first * stride, q * stride + c, ok & (c < channels))


@triton.jit(do_not_specialize=["pixels", "z1_streams", "z2_streams"])
def masked_forward(
    h, z1, z2, scale, shift, logits, slope, offset,
    pixels, channels, h_stride, z1_stride, z2_stride,
    z1_streams, z2_streams, z2_channels, scale_channels, shift_channels,
    HAS_SLOPE: tl.constexpr, HAS_OFFSET: tl.constexpr, IS_COMPACT: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Both streams of h = (slope ⊙ (scale z1 + z2 + shift) + offset) ⊙ mask.

    `z1_streams`, `z2_streams`: one, or zero where both streams share the value.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    below = pixels.to(tl.int64) + first
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (first + q < pixels) & (c < channels)
    at = q * channels + c
    logit = _load_logit(logits + first * channels, at, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    positive = _load(z1 + first * z1_stride, q * z1_stride + c, ok)
    other = first + z1_streams * pixels.to(tl.int64)
    negative = _load(z1 + other * z1_stride, q * z1_stride + c, ok)
    by = tl.load(scale + c, c < scale_channels, other=1.0)
    positive *= by
    negative *= by
    other = first + z2_streams * pixels.to(tl.int64)
    added = tl.load(shift + c, c < shift_channels, other=0.0)
    positive += added + _part(z2, first, q, c, ok, z2_stride, z2_channels)
    negative += added + _part(z2, other, q, c, ok, z2_stride, z2_channels)
    if HAS_SLOPE:
        by = _load(slope + first * channels, at, ok)
        positive *= by
        negative *= by
    if HAS_OFFSET:
        by = _load(offset + first * channels, at, ok)
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
    dz, g1, g2, tail, seeds, streams, h, scale, logits, squares, slope, iteration, rate,
    pixels, rows, per_row, channels, g1_stride, g2_stride, h_stride,
    dz_channels, g1_channels, g2_channels, tail_channels, scale_channels,
    HAS_SLOPE: tl.constexpr, IS_BOTH: tl.constexpr, IS_COMPACT: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient in z from that in h, and RMSProp's step of the masks.

    The gradient in h is g1 + g2 + tail · seed, of one stream a row, which `streams` names, or of
    both, stacked (`IS_BOTH`).
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
    logit = _load_logit(logits, at, ok, IS_COMPACT)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    by = tl.load(scale + c, c < scale_channels, other=1.0)
    if HAS_SLOPE:
        by = by * _load(slope + first * channels, at, ok)
    by = tl.where(is_open, by, 0.0)
    onwards = ok & (c < dz_channels)
    kind = dz.dtype.element_ty
    last = _part(tail, first, q, c, ok, channels, tail_channels)
    g = last * tl.load(seeds + row)
    g += _part(g1, first, q, c, ok, g1_stride, g1_channels)
    g += _part(g2, first, q, c, ok, g2_stride, g2_channels)
    if IS_BOTH:
        under = first + all_pixels
        n = last * tl.load(seeds + rows + row)
        n += _part(g1, under, q, c, ok, g1_stride, g1_channels)
        n += _part(g2, under, q, c, ok, g2_stride, g2_channels)
        change = g * (1.0 - mask) * _load(h + first * h_stride, q * h_stride + c, ok)
        change -= n * mask * _load(h + under * h_stride, q * h_stride + c, ok)
        tl.store(dz + at, (g * mask * by).to(kind), onwards)
        tl.store(dz + all_pixels * channels + at, (n * (1.0 - mask) * by).to(kind), onwards)
    else:
        stream = tl.load(streams + row)
        here = h + first * h_stride + stream * (all_pixels * h_stride)
        change = g * _load(here, q * h_stride + c, ok) * tl.where(stream == 0, 1.0 - mask, -mask)
        passed = g * by * tl.where(stream == 0, mask, 1.0 - mask)
        tl.store(dz + at, passed.to(kind), onwards)
    change = tl.where(is_open, change, 0.0)
    element = (pixel - row * per_row) * channels + c
    now = tl.load(iteration)
    _descend(logits, squares, at, ok, logit, change, rate, element, now, IS_COMPACT)


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
        logit = _load_logit(logits + start, at, ok, IS_COMPACT)
    else:
        logit = _load_logit(logits + before * channels, source * channels + c, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    added = tl.load(shift + c, c < shift_channels, other=0.0)
    positive = _load(z + before * z_stride, source * z_stride + c, ok) + added
    before += z_streams * pixels.to(tl.int64)
    negative = _load(z + before * z_stride, source * z_stride + c, ok) + added
    is_open = logit < CLOSED
    kind = h.dtype.element_ty
    tl.store(h + start + at, tl.where(is_open, positive * mask, 0.0).to(kind), ok)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + windows.to(tl.int64) * channels + start + at, negative.to(kind), ok)


@triton.jit(do_not_specialize=["pixels", "windows", "rows", "height", "width", "out_height",
                               "out_width"])  # fmt: skip
def pooled_backward_by_window(
    dz, g1, g2, tail, seeds, streams, h, logits, squares, winners, iteration, rate,
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
    logit = _load_logit(logits, at, ok, IS_COMPACT)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    last = _part(tail, first, q, c, ok, channels, tail_channels)
    g = last * tl.load(seeds + row)
    g += _part(g1, first, q, c, ok, g1_stride, g1_channels)
    g += _part(g2, first, q, c, ok, g2_stride, g2_channels)
    if IS_BOTH:
        n = last * tl.load(seeds + rows + row)
        n += _part(g1, under, q, c, ok, g1_stride, g1_channels)
        n += _part(g2, under, q, c, ok, g2_stride, g2_channels)
        change = g * (1.0 - mask) * _load(h + first * channels, at, ok)
        change -= n * mask * _load(h + under * channels, at, ok)
        passed = tl.where(is_open, g * mask, 0.0)
        passed_below = tl.where(is_open, n * (1.0 - mask), 0.0)
    else:
        stream = tl.load(streams + row)
        here = h + first * channels + stream * (windows.to(tl.int64) * channels)
        change = g * _load(here, at, ok) * tl.where(stream == 0, 1.0 - mask, -mask)
        passed = tl.where(is_open, g * tl.where(stream == 0, mask, 1.0 - mask), 0.0)
        passed_below = passed
    won = tl.load(winners + first * channels + at, ok, other=0).to(tl.int32)
    kind = dz.dtype.element_ty
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
    change = tl.where(is_open, change, 0.0)
    element = (window - row * per_row) * channels + c
    now = tl.load(iteration)
    _descend(logits, squares, at, ok, logit, change, rate, element, now, IS_COMPACT)


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
        part = _load(g1, window * g1_stride + c, there)
        part += _load(g2, window * g2_stride + c, there & (c < g2_channels))
        g += tl.where(won == dy * KERNEL + dx, part, 0.0)
    return g


@triton.jit(do_not_specialize=["pixels", "windows", "rows", "height", "width", "out_height",
                               "out_width", "z_streams"])  # fmt: skip
def pooled_backward_by_pixel(
    dz, g1, g2, streams, z, shift, logits, squares, winners, iteration, rate,
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
    logit = _load_logit(logits, at, ok, IS_COMPACT)
    is_open = logit < CLOSED
    mask = 1.0 / (1.0 + tl.exp(-logit))
    stream = tl.load(streams + row)
    if IS_BOTH:
        stream = stream * 0
    g = _from_windows(g1 + first_window * g1_stride, g2 + first_window * g2_stride, winners,
                      row - first_row, y, x, c, ok, channels, out_height, out_width,
                      g1_stride, g2_stride, g2_channels, KERNEL, STRIDE, PADDING)  # fmt: skip
    added = tl.load(shift + c, c < shift_channels, other=0.0)
    source = z + first * z_stride + (stream * z_streams) * (all_pixels * z_stride)
    here = _load(source, q * z_stride + c, ok) + added
    change = g * here * mask * (1.0 - mask) * tl.where(stream == 0, 1.0, -1.0)
    kind = dz.dtype.element_ty
    onwards = ok & (c < dz_channels)
    passed = tl.where(is_open, g * tl.where(stream == 0, mask, 1.0 - mask), 0.0)
    tl.store(dz + at, passed.to(kind), onwards)
    if IS_BOTH:
        under = first_window + windows
        n = _from_windows(g1 + under * g1_stride, g2 + under * g2_stride, winners,
                          row - first_row, y, x, c, ok, channels, out_height, out_width,
                          g1_stride, g2_stride, g2_channels, KERNEL, STRIDE, PADDING)  # fmt: skip
        source = z + (first + z_streams * all_pixels) * z_stride
        change -= n * (_load(source, q * z_stride + c, ok) + added) * mask * (1.0 - mask)
        passed = tl.where(is_open, n * (1.0 - mask), 0.0)
        tl.store(dz + all_pixels * channels + at, passed.to(kind), onwards)
    change = tl.where(is_open, change, 0.0)
    element = (pixel - row * per_row) * channels + c
    now = tl.load(iteration)
    _descend(logits, squares, at, ok, logit, change, rate, element, now, IS_COMPACT)


@triton.jit(do_not_specialize=["rows", "first"])
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


@triton.jit(do_not_specialize=["rows"])
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
