"""A ReLU's site with the max-pooling after it, in Triton: only the pixels that win a window matter.

x alone decides which pixel wins a window, so the forward kernel reads the winners and skips all
other pixels: it fuses bias, gate, masks and pooling, and never writes the unpooled activation.

There are two backward kernels. If windows do not overlap, each program takes a tile of windows and
writes the gradients of their pixels, zero except for the winners; masks are then stored by window.
If windows overlap, each program takes a tile of pixels and gathers from the windows that they won,
in a fixed order, so that sums are deterministic.

Layouts and operands are those of `site.py`. `winners` (windows, channels) are uint8 positions in
the window, counted row by row.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.half_precision import GradientRange
from dmbp.engine.gpu.learning_state import (
    LearningState,
    SharedValue,
    StreamGradient,
    seeded_gradient,
)
from dmbp.engine.gpu.triton.gate_gradients import pass_gate
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.mask_state import (
    CLOSED,
    MaskState,
    clamp_to_float16,
    load_float32,
    load_logit,
    load_optional_tile,
    load_square,
    rmsprop_step,
)
from dmbp.engine.gpu.triton.site import (
    PixelLayout,
    channel_count,
    empty_channels_last,
    gradient_operands,
    launch_grid,
    operand,
    or_placeholder,
    present_channels,
    tile_settings,
)
from dmbp.engine.gpu.triton.transposes import window_winners
from dmbp.linear.lines import ElementwiseLine


@triton.jit(do_not_specialize=["pixels", "windows", "height", "width", "out_height", "out_width",
                               "z_streams"])  # fmt: skip
def pooled_forward_kernel(
    h, z, shift, logits, winners,
    pixels, windows, channels, height, width, out_height, out_width, z_stride,
    z_streams, shift_channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    AT_WINDOWS: tl.constexpr, IS_COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute both streams of the pooled (z + shift) ⊙ mask at each window's winner.

    Reads `winners`, and `z` and `logits` at the winners; writes `h` (windows of both streams,
    channels). If `AT_WINDOWS`, windows do not overlap and `logits` are stored by window instead of
    by pixel. `z_streams` is 1, or 0 if both streams share z.
    """
    first = tl.program_id(0) * TILE
    start = first.to(tl.int64) * channels
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    window = first + q
    ok = (window < windows) & (c < channels)
    at = q * channels + c
    winner = tl.load(winners + start + at, ok, other=0).to(tl.int32)
    first_row = first // (out_height * out_width)
    first_pixel = first_row.to(tl.int64) * height * width
    row = window // (out_height * out_width) - first_row
    y = window // out_width % out_height * STRIDE - PADDING + winner // KERNEL
    x = window % out_width * STRIDE - PADDING + winner % KERNEL
    source = (row * height + y) * width + x
    if AT_WINDOWS:
        logit = load_logit(logits + start, at, ok, IS_COMPACT)
    else:
        logit = load_logit(logits + first_pixel * channels, source * channels + c, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    shift_tile = tl.load(shift + c, c < shift_channels, other=0.0)
    positive = load_float32(z + first_pixel * z_stride, source * z_stride + c, ok) + shift_tile
    first_pixel += z_streams * pixels.to(tl.int64)
    negative = load_float32(z + first_pixel * z_stride, source * z_stride + c, ok) + shift_tile
    is_open = logit < CLOSED
    out_dtype = h.dtype.element_ty
    tl.store(h + start + at, tl.where(is_open, positive * mask, 0.0).to(out_dtype), ok)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + windows.to(tl.int64) * channels + start + at, negative.to(out_dtype), ok)


@triton.jit(do_not_specialize=["pixels", "windows", "rows", "height", "width", "out_height",
                               "out_width"])  # fmt: skip
def pooled_backward_by_window_kernel(
    dz, g1, g2, tail, seeds, product_scales, active_streams, h, logits, squares, winners,
    iteration, rate, pixels, windows, rows, channels, height, width, out_height, out_width,
    g1_stride, g2_stride, dz_channels, g1_channels, g2_channels, tail_channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BOTH_STREAMS: tl.constexpr, IS_COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Pass the gradient back through windows that do not overlap, and take an RMSProp step.

    A window's winner gets its whole gradient g1 + g2 + tail · seed, times mask; the window's other
    pixels get zero. Reads `h` as the forward kernel wrote it; updates `logits` and `squares`,
    stored by window; writes `dz` at all pixels of all windows, unless `dz_channels` is 0. Pixels
    outside every window are not written: they must be zero already.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    first_negative = first + windows
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
    winner = tl.load(winners + first * channels + at, ok, other=0).to(tl.int32)
    tail_gradient = load_optional_tile(tail, first, q, c, ok, channels, tail_channels)
    g = tail_gradient * tl.load(seeds + row)
    g += load_optional_tile(g1, first, q, c, ok, g1_stride, g1_channels)
    g += load_optional_tile(g2, first, q, c, ok, g2_stride, g2_channels)
    out_dtype = dz.dtype.element_ty
    g = clamp_to_float16(g, out_dtype)
    if BOTH_STREAMS:
        g_negative = tail_gradient * tl.load(seeds + rows + row)
        g_negative += load_optional_tile(g1, first_negative, q, c, ok, g1_stride, g1_channels)
        g_negative += load_optional_tile(g2, first_negative, q, c, ok, g2_stride, g2_channels)
        g_negative = clamp_to_float16(g_negative, out_dtype)
        change = g * (1.0 - mask) * load_float32(h + first * channels, at, ok)
        change -= g_negative * mask * load_float32(h + first_negative * channels, at, ok)
        passed = tl.where(is_open, g * mask, 0.0)
        passed_negative = tl.where(is_open, g_negative * (1.0 - mask), 0.0)
    else:
        stream = tl.load(active_streams + row)
        active_h = h + first * channels + stream * (windows.to(tl.int64) * channels)
        change = g * load_float32(active_h, at, ok) * tl.where(stream == 0, 1.0 - mask, -mask)
        passed = tl.where(is_open, g * tl.where(stream == 0, mask, 1.0 - mask), 0.0)
        passed_negative = passed
    first_row = tl.program_id(0) * TILE // per_row
    dz += first_row.to(tl.int64) * height * width * channels
    y0 = window // out_width % out_height * STRIDE - PADDING
    x0 = window % out_width * STRIDE - PADDING
    for k in tl.static_range(KERNEL * KERNEL):
        y = y0 + k // KERNEL
        x = x0 + k % KERNEL
        inside = ok & (y >= 0) & (y < height) & (x >= 0) & (x < width) & (c < dz_channels)
        to = (((row - first_row) * height + y) * width + x) * channels + c
        tl.store(dz + to, tl.where(winner == k, passed, 0.0).to(out_dtype), inside)
        if BOTH_STREAMS:
            dz_negative = dz + pixels.to(tl.int64) * channels
            tl.store(
                dz_negative + to, tl.where(winner == k, passed_negative, 0.0).to(out_dtype), inside
            )
    change = tl.where(is_open, change / tl.load(product_scales + row), 0.0)
    element = (window - row * per_row) * channels + c
    now = tl.load(iteration)
    rmsprop_step(logits, squares, at, ok, logit, square, change, rate, element, now, IS_COMPACT)


@triton.jit
def _from_windows(g1, g2, winners, row, y, x, c, ok, channels, out_height, out_width,
                  g1_stride, g2_stride, g2_channels,
                  KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr):  # fmt: skip
    """Add up the gradients of all windows that each pixel of a tile won."""
    g = tl.zeros(ok.shape, tl.float32)
    reach: tl.constexpr = (KERNEL + STRIDE - 1) // STRIDE
    for k in tl.static_range(reach * reach):
        oy = (y + PADDING) // STRIDE - k // reach
        ox = (x + PADDING) // STRIDE - k % reach
        dy = y + PADDING - oy * STRIDE
        dx = x + PADDING - ox * STRIDE
        contains = (oy >= 0) & (oy < out_height) & (ox >= 0) & (ox < out_width)
        contains = ok & contains & (dy < KERNEL) & (dx < KERNEL)
        window = (row * out_height + oy) * out_width + ox
        winner = tl.load(winners + window * channels + c, contains, other=255).to(tl.int32)
        part = load_float32(g1, window * g1_stride + c, contains)
        part += load_float32(g2, window * g2_stride + c, contains & (c < g2_channels))
        g += tl.where(winner == dy * KERNEL + dx, part, 0.0)
    return g


@triton.jit(do_not_specialize=["pixels", "windows", "rows", "height", "width", "out_height",
                               "out_width", "z_streams"])  # fmt: skip
def pooled_backward_by_pixel_kernel(
    dz, g1, g2, product_scales, active_streams, z, shift, logits, squares, winners, iteration, rate,
    pixels, windows, rows, channels, height, width, out_height, out_width,
    g1_stride, g2_stride, z_stride, z_streams, dz_channels, g2_channels, shift_channels,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BOTH_STREAMS: tl.constexpr, IS_COMPACT: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Pass the gradient back through windows that overlap, and take an RMSProp step.

    Every pixel gathers g1 + g2 from the windows that it won. Reads `z` and `shift` to recompute the
    gate's input, because only pooled activations were stored; updates `logits` and `squares`,
    stored by pixel; writes `dz` unless `dz_channels` is 0.
    """
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
    stream = tl.load(active_streams + row)
    if BOTH_STREAMS:
        stream = stream * 0
    g = _from_windows(g1 + first_window * g1_stride, g2 + first_window * g2_stride, winners,
                      row - first_row, y, x, c, ok, channels, out_height, out_width,
                      g1_stride, g2_stride, g2_channels, KERNEL, STRIDE, PADDING)  # fmt: skip
    out_dtype = dz.dtype.element_ty
    g = clamp_to_float16(g, out_dtype)
    shift_tile = tl.load(shift + c, c < shift_channels, other=0.0)
    source = z + first * z_stride + (stream * z_streams) * (all_pixels * z_stride)
    active_z = load_float32(source, q * z_stride + c, ok) + shift_tile
    change = g * active_z * mask * (1.0 - mask) * tl.where(stream == 0, 1.0, -1.0)
    writes_dz = ok & (c < dz_channels)
    passed = tl.where(is_open, g * tl.where(stream == 0, mask, 1.0 - mask), 0.0)
    tl.store(dz + at, passed.to(out_dtype), writes_dz)
    if BOTH_STREAMS:
        first_negative = first_window + windows
        g_negative = _from_windows(
            g1 + first_negative * g1_stride, g2 + first_negative * g2_stride, winners,
            row - first_row, y, x, c, ok, channels, out_height, out_width,
            g1_stride, g2_stride, g2_channels, KERNEL, STRIDE, PADDING,
        )  # fmt: skip
        g_negative = clamp_to_float16(g_negative, out_dtype)
        source = z + (first + z_streams * all_pixels) * z_stride
        change -= (
            g_negative
            * (load_float32(source, q * z_stride + c, ok) + shift_tile)
            * mask
            * (1.0 - mask)
        )
        passed = tl.where(is_open, g_negative * (1.0 - mask), 0.0)
        tl.store(dz + all_pixels * channels + at, passed.to(out_dtype), writes_dz)
    change = tl.where(is_open, change / tl.load(product_scales + row), 0.0)
    element = (pixel - row * per_row) * channels + c
    now = tl.load(iteration)
    rmsprop_step(logits, squares, at, ok, logit, square, change, rate, element, now, IS_COMPACT)


class PooledTritonSite:
    """A ReLU with its masks, the bias before it and the max-pooling after it.

    Masks of pixels that win no window have no effect and never change. If windows do not overlap,
    only the winners' state is stored, one element per window and channel.
    """

    def __init__(self, fused: FusedGate, logits: Tensor, learning: LearningState) -> None:
        line, pooling = fused.gate.function, fused.pooling
        assert isinstance(line, ElementwiseLine)
        assert pooling is not None
        index = pooling.index
        is_open = line.slope.expand(logits.shape)
        self._pooling = pooling
        unit = learning.unit
        self._shift = None if fused.shift is None else fused.shift.float().contiguous() * unit
        self._learning = learning
        self._height, self._width = logits.shape[2:]
        self._winners = window_winners(pooling, self._width)
        self._initial_logits: Tensor | None = None
        if not pooling.overlaps:
            self._initial_logits = logits.half()
            self._winner_index = index.flatten(2)
            logits = logits.flatten(2).gather(2, self._winner_index).view(index.shape)
            is_open = is_open.flatten(2).gather(2, self._winner_index).view(index.shape)
        self._state = MaskState(logits, is_open, learning)
        self._input: Tensor | SharedValue | None = None
        self._out: Tensor | None = None
        self._zeroed_gradient: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The current mask logits; the initial ones at pixels whose state is not stored."""
        learned = self._state.decoded()
        if self._initial_logits is None:
            return learned
        full = self._initial_logits.float().flatten(2)
        return full.scatter(2, self._winner_index, learned.flatten(2)).view(
            self._initial_logits.shape
        )

    def pass_gradient(
        self,
        gradient: Tensor,
        slope: Tensor,  # noqa: ARG002
        gradient_range: GradientRange | None,
    ) -> Tensor:
        """Pass both streams' gradients through the gate and its masks.

        Only winners have a gradient, so a logit stored by window serves all of its pixels.
        """
        if self._initial_logits is None:
            return pass_gate(gradient, self._state.logits, None, gradient_range)
        return pass_gate(gradient, self._logits_at_pixels(), None, gradient_range)

    def forward(self, terms: Sequence[Tensor | SharedValue]) -> Tensor:
        """Return both streams' pooled output."""
        (term,) = terms
        learning = self._learning
        rows, channels, *size = self._winners.shape
        out = empty_channels_last((2 * rows, channels, *size), learning.dtype, self._winners)
        z, stride, z_streams = operand(term)
        layout = PixelLayout(rows * size[0] * size[1], channels, channels)
        launch(
            pooled_forward_kernel, launch_grid(layout),
            out, z, or_placeholder(self._shift, learning.scales), self._state.logits, self._winners,
            *self._kernel_sizes(), stride, z_streams, channel_count(self._shift),
            **self._window_settings(), AT_WINDOWS=not self._pooling.overlaps,
            IS_COMPACT=learning.is_compact, **tile_settings(layout),
        )  # fmt: skip
        self._input, self._out = term, out
        return out

    def backward(self, gradient: StreamGradient, *, needs_input_gradient: bool) -> Tensor | None:
        """Take an RMSProp step; return the gradient with respect to the term if needed."""
        assert self._out is not None
        assert self._input is not None
        result = self._gradient_buffer() if needs_input_gradient else None
        if self._pooling.overlaps:
            self._by_pixel(gradient, result)
        else:
            self._by_window(gradient, result)
        self._input = self._out = None
        return result

    def _by_window(self, gradient: StreamGradient, result: Tensor | None) -> None:
        """Launch the backward kernel for windows that do not overlap."""
        learning, out = self._learning, self._out
        assert out is not None
        first, second = gradient_operands(gradient, out)
        pixels, windows, channels, *sides = self._kernel_sizes()
        layout = PixelLayout(windows, channels, channels)
        launch(
            pooled_backward_by_window_kernel, launch_grid(layout),
            or_placeholder(result, out), first[0], second[0], or_placeholder(gradient.tail,
            learning.scales),
            learning.seeds, learning.product_scales, learning.active_streams, out,
            self._state.logits,
            self._state.squares, self._winners, learning.iteration, learning.learning_rate, pixels,
            windows, len(self._winners), channels, *sides, first[1], second[1],
            *present_channels(layout, result, gradient),
            **self._window_settings(), BOTH_STREAMS=learning.touches_both_streams,
            IS_COMPACT=learning.is_compact,
            **tile_settings(layout),
        )  # fmt: skip

    def _by_pixel(self, gradient: StreamGradient, result: Tensor | None) -> None:
        """Launch the backward kernel for windows that overlap."""
        learning, out = self._learning, self._out
        assert out is not None
        assert self._input is not None
        parts = list(gradient.parts)
        # Hardly any network ends with such a pooling, so the kernel has no operand for the tail.
        if gradient.tail is not None:
            parts = [
                sum(parts[1:], parts[0]) if parts else None,
                seeded_gradient(gradient.tail, learning),
            ]
            parts = [part for part in parts if part is not None]
        first, second = gradient_operands(StreamGradient(parts), out)
        z, stride, z_streams = operand(self._input)
        pixels, windows, channels, *sides = self._kernel_sizes()
        layout = PixelLayout(pixels, channels, channels)
        launch(
            pooled_backward_by_pixel_kernel, launch_grid(layout),
            or_placeholder(result, out), first[0], second[0], learning.product_scales,
            learning.active_streams, z,
            or_placeholder(self._shift, learning.scales), self._state.logits, self._state.squares,
            self._winners, learning.iteration, learning.learning_rate, pixels, windows,
            len(self._winners), channels, *sides, first[1], second[1], stride, z_streams,
            0 if result is None else channels, channels if len(parts) > 1 else 0,
            channel_count(self._shift), **self._window_settings(),
            BOTH_STREAMS=learning.touches_both_streams,
            IS_COMPACT=learning.is_compact, **tile_settings(layout),
        )  # fmt: skip

    def _logits_at_pixels(self) -> Tensor:
        """Return every window's logit at all pixels of the window, encoded as in the state."""
        stride, padding = self._pooling.stride, self._pooling.padding
        windows = self._state.logits.permute(0, 2, 3, 1)
        rows, *size, channels = windows.shape
        shape = (rows, size[0], stride, size[1], stride, channels)
        pixels = (
            windows[:, :, None, :, None].expand(shape).reshape(rows, *self._covered_size, channels)
        )
        margins = (self._height - self._covered_size[0], self._width - self._covered_size[1])
        if padding or any(margins):
            down, along = ((-padding, margin + padding) for margin in margins)
            pixels = torch.nn.functional.pad(pixels, (0, 0, *along, *down))
        return pixels.permute(0, 3, 1, 2)

    @property
    def _covered_size(self) -> tuple[int, int]:
        """The height and width that the windows cover, counted in strides."""
        height, width = self._winners.shape[2:]
        return height * self._pooling.stride, width * self._pooling.stride

    def _gradient_buffer(self) -> Tensor:
        """Return a tensor to write the gradient into.

        If the kernel does not write every pixel, this is a buffer that is zeroed once and reused.
        """
        rows, channels = self._winners.shape[:2]
        rows = 2 * rows if self._learning.touches_both_streams else rows
        shape = (rows, channels, self._height, self._width)
        gapless = self._pooling.kernel == self._pooling.stride and self._pooling.padding == 0
        covered = (
            gapless
            and self._covered_size[0] >= self._height
            and self._covered_size[1] >= self._width
        )
        if covered or self._pooling.overlaps:
            return empty_channels_last(shape, self._learning.dtype, self._winners)
        if self._zeroed_gradient is None:
            self._zeroed_gradient = empty_channels_last(
                shape, self._learning.dtype, self._winners
            ).zero_()
        return self._zeroed_gradient

    def _kernel_sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """Return the numbers of pixels, windows and channels, and the unpooled and pooled sizes."""
        rows, channels, out_height, out_width = self._winners.shape
        pixels, windows = rows * self._height * self._width, rows * out_height * out_width
        return pixels, windows, channels, self._height, self._width, out_height, out_width

    def _window_settings(self) -> dict[str, int]:
        """Return the pooling's kernel size, stride and padding as compile-time constants."""
        pooling = self._pooling
        return {"KERNEL": pooling.kernel, "STRIDE": pooling.stride, "PADDING": pooling.padding}
