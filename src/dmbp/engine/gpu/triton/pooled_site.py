"""Triton kernels for a ReLU with the max-pooling behind it: only x's winners are touched.

Tensors and arguments are as in `triton_kernels`.

A ReLU's site with the max-pooling behind it, in Triton.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.state import GradientRange, LearningState, Shared, StreamGradient, seeded
from dmbp.engine.gpu.triton.gates import past
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.site import (
    Grid,
    MaskState,
    channels_of,
    either,
    empty,
    parts_of,
    programs,
    size_of,
    term_of,
    tile,
)
from dmbp.engine.gpu.triton.state import (
    CLOSED,
    descend,
    load,
    load_logit,
    load_square,
    tile_of,
    within,
)
from dmbp.engine.gpu.triton.windows import winners_of
from dmbp.linear.lines import ElementwiseLine


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


class PooledTritonSite:
    """A ReLU with the bias before it and the max-pooling behind it.

    Masks of pixels that win no window change nothing and never move. Where windows do not overlap,
    state is kept for winners alone, one a window.
    """

    def __init__(self, merged: Merged, logits: Tensor, learning: LearningState) -> None:
        piece, pooling = merged.gate.function, merged.pooling
        assert isinstance(piece, ElementwiseLine)
        assert pooling is not None
        index = pooling.index
        is_open = piece.slope.expand(logits.shape)
        self._pooling = pooling
        unit = learning.unit
        self._shift = None if merged.shift is None else merged.shift.float().contiguous() * unit
        self._learning = learning
        self._height, self._width = logits.shape[2:]
        self._winners = winners_of(pooling, self._width)
        self._before: Tensor | None = None
        if not pooling.overlaps:
            self._before = logits.half()
            self._index = index.flatten(2)
            logits = logits.flatten(2).gather(2, self._index).view(index.shape)
            is_open = is_open.flatten(2).gather(2, self._index).view(index.shape)
        self._state = MaskState(logits, is_open, learning)
        self._given: Tensor | Shared | None = None
        self._out: Tensor | None = None
        self._zeroed: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The learned scalars as they stand; where nothing is won, as they were."""
        learned = self._state.learned()
        if self._before is None:
            return learned
        full = self._before.float().flatten(2)
        return full.scatter(2, self._index, learned.flatten(2)).view(self._before.shape)

    def past(self, gradient: Tensor, slope: Tensor, seen: GradientRange | None) -> Tensor:  # noqa: ARG002
        """Both streams' gradients past gate and masks; only winners have one."""
        if self._before is None:
            return past(gradient, self._state.logits, None, seen)
        return past(gradient, self._at_pixels(), None, seen)

    def forward(self, terms: Sequence[Tensor | Shared]) -> Tensor:
        """Both streams of the winners."""
        (term,) = terms
        learning = self._learning
        rows, channels, *size = self._winners.shape
        out = empty((2 * rows, channels, *size), learning.dtype, self._winners)
        z, stride, streams = term_of(term)
        grid = Grid(rows * size[0] * size[1], channels, channels)
        launch(
            pooled_forward, programs(grid),
            out, z, either(self._shift, learning.scales), self._state.logits, self._winners,
            *self._sizes(), stride, streams, size_of(self._shift),
            **self._windows(), AT_WINDOWS=not self._pooling.overlaps,
            IS_COMPACT=learning.is_compact, **tile(grid),
        )  # fmt: skip
        self._given, self._out = term, out
        return out

    def backward(self, gradient: StreamGradient, *, goes_on: bool) -> Tensor | None:
        """The gradient in what the gate reads, where it `goes_on`; the masks descend."""
        assert self._out is not None
        assert self._given is not None
        result = self._result() if goes_on else None
        if self._pooling.overlaps:
            self._by_pixel(gradient, result)
        else:
            self._by_window(gradient, result)
        self._given = self._out = None
        return result

    def _by_window(self, gradient: StreamGradient, result: Tensor | None) -> None:
        learning, out = self._learning, self._out
        assert out is not None
        first, second = parts_of(gradient, out)
        pixels, windows, channels, *sides = self._sizes()
        grid = Grid(windows, channels, channels)
        launch(
            pooled_backward_by_window, programs(grid),
            either(result, out), first[0], second[0], either(gradient.tail, learning.scales),
            learning.seeds, learning.products, learning.streams, out, self._state.logits,
            self._state.squares, self._winners, learning.iteration, learning.rate, pixels,
            windows, len(self._winners), channels, *sides, first[1], second[1],
            *channels_of(grid, result, gradient),
            **self._windows(), IS_BOTH=learning.is_both, IS_COMPACT=learning.is_compact,
            **tile(grid),
        )  # fmt: skip

    def _by_pixel(self, gradient: StreamGradient, result: Tensor | None) -> None:
        learning, out = self._learning, self._out
        assert out is not None
        assert self._given is not None
        parts = list(gradient.parts)
        if gradient.tail is not None:  # no network ends so; in plain terms
            parts = [sum(parts[1:], parts[0]) if parts else None, seeded(gradient.tail, learning)]
            parts = [part for part in parts if part is not None]
        first, second = parts_of(StreamGradient(parts), out)
        z, stride, streams = term_of(self._given)
        pixels, windows, channels, *sides = self._sizes()
        grid = Grid(pixels, channels, channels)
        launch(
            pooled_backward_by_pixel, programs(grid),
            either(result, out), first[0], second[0], learning.products, learning.streams, z,
            either(self._shift, learning.scales), self._state.logits, self._state.squares,
            self._winners, learning.iteration, learning.rate, pixels, windows,
            len(self._winners), channels, *sides, first[1], second[1], stride, streams,
            0 if result is None else channels, channels if len(parts) > 1 else 0,
            size_of(self._shift), **self._windows(), IS_BOTH=learning.is_both,
            IS_COMPACT=learning.is_compact, **tile(grid),
        )  # fmt: skip

    def _at_pixels(self) -> Tensor:
        """The logit of every window at all of its pixels, as logits are kept."""
        stride, padding = self._pooling.stride, self._pooling.padding
        windows = self._state.logits.permute(0, 2, 3, 1)
        rows, *size, channels = windows.shape
        shape = (rows, size[0], stride, size[1], stride, channels)
        pixels = windows[:, :, None, :, None].expand(shape).reshape(rows, *self._reach, channels)
        margins = (self._height - self._reach[0], self._width - self._reach[1])
        if padding or any(margins):
            down, along = ((-padding, margin + padding) for margin in margins)
            pixels = torch.nn.functional.pad(pixels, (0, 0, *along, *down))
        return pixels.permute(0, 3, 1, 2)

    @property
    def _reach(self) -> tuple[int, int]:
        """Height and width of as many windows, side by side."""
        height, width = self._winners.shape[2:]
        return height * self._pooling.stride, width * self._pooling.stride

    def _result(self) -> Tensor:
        """Where the gradient goes: zero once and for all at pixels outside all windows."""
        rows, channels = self._winners.shape[:2]
        rows = 2 * rows if self._learning.is_both else rows
        shape = (rows, channels, self._height, self._width)
        gapless = self._pooling.kernel == self._pooling.stride and self._pooling.padding == 0
        covered = gapless and self._reach[0] >= self._height and self._reach[1] >= self._width
        if covered or self._pooling.overlaps:
            return empty(shape, self._learning.dtype, self._winners)
        if self._zeroed is None:
            self._zeroed = empty(shape, self._learning.dtype, self._winners).zero_()
        return self._zeroed

    def _sizes(self) -> tuple[int, int, int, int, int, int, int]:
        rows, channels, out_height, out_width = self._winners.shape
        pixels, windows = rows * self._height * self._width, rows * out_height * out_width
        return pixels, windows, channels, self._height, self._width, out_height, out_width

    def _windows(self) -> dict[str, int]:
        pooling = self._pooling
        return {"KERNEL": pooling.kernel, "STRIDE": pooling.stride, "PADDING": pooling.padding}
