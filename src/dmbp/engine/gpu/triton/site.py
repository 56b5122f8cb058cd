"""Sites in Triton: everything that happens at a gate, in one forward and one backward kernel.

The forward kernel fuses the bias, sum or batch norm before the gate, the gate, and both masks. The
backward kernel fuses the sum of incoming gradients, the gradient with respect to the masks with an
RMSProp step, and the gradient through masks, gate and batch norm. Each kernel passes over every
tensor once.

Tensors are channels-last: element (pixel, channel) lies at pixel · stride + channel. Pixels are
counted over all rows of a stream, and the negative stream's pixels follow the positive's. A program
takes a tile of `TILE` pixels by `WIDTH` channels. In its kernel, `first` is the tile's first pixel,
`q` are the tile's pixels counted from `first`, and `c` are its channels counted from the tensor's
first channel. An optional operand comes with its number of channels, zero if it is missing, so that
one compiled kernel serves both cases; differences in code (`HAS_…`, `IS_…`) are compile-time
constants. Offsets within a tile are 32-bit, offsets of tiles 64-bit.

Fusing a 1 × 1 convolution with its site was tried and is slower: the matrix product and a dozen
tensors in its epilogue do not fit into registers together (ResNet50, batch of 64 on an H200: at
best 13 ms per iteration against 8.5).
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.fusion import FusedGate
from dmbp.engine.gpu.half_precision import GradientRange
from dmbp.engine.gpu.learning_state import LearningState, SharedValue, SplitSum, StreamGradient
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
from dmbp.engine.plan.streams import channels_last
from dmbp.linear.lines import ElementwiseLine


@triton.jit(do_not_specialize=["pixels", "z1_streams", "z2_streams"])
def site_forward_kernel(
    h, z1, z2, scale, shift, logits, slope, offset,
    pixels, channels, h_stride, z1_stride, z2_stride,
    z1_streams, z2_streams, z1_summand_stride, z2_channels, scale_channels, shift_channels,
    HAS_SLOPE: tl.constexpr, HAS_OFFSET: tl.constexpr, IS_COMPACT: tl.constexpr,
    SUMMANDS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute both streams of h = (slope ⊙ (scale · z1 + z2 + shift) + offset) ⊙ mask.

    Reads `z1`, `z2`, `logits` and, per channel, `scale` and `shift`; writes `h` for the pixels of
    both streams. `z1_streams` and `z2_streams` are 1, or 0 if both streams share the value. z1 is a
    sum of `SUMMANDS` tensors, `z1_summand_stride` elements apart.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    first_negative = pixels.to(tl.int64) + first
    q = tl.arange(0, TILE)[:, None]
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    ok = (first + q < pixels) & (c < channels)
    at = q * channels + c
    logit = load_logit(logits + first * channels, at, ok, IS_COMPACT)
    mask = 1.0 / (1.0 + tl.exp(-logit))
    factor = tl.load(scale + c, c < scale_channels, other=1.0)
    shift_tile = tl.load(shift + c, c < shift_channels, other=0.0)
    positive = load_float32(z1 + first * z1_stride, q * z1_stride + c, ok)
    z_negative = first + z1_streams * pixels.to(tl.int64)
    negative = load_float32(z1 + z_negative * z1_stride, q * z1_stride + c, ok)
    for k in tl.static_range(1, SUMMANDS):
        summand = z1 + k * z1_summand_stride
        positive += load_float32(summand + first * z1_stride, q * z1_stride + c, ok)
        negative += load_float32(summand + z_negative * z1_stride, q * z1_stride + c, ok)
    positive *= factor
    negative *= factor
    z_negative = first + z2_streams * pixels.to(tl.int64)
    positive += shift_tile + load_optional_tile(z2, first, q, c, ok, z2_stride, z2_channels)
    negative += shift_tile + load_optional_tile(z2, z_negative, q, c, ok, z2_stride, z2_channels)
    if HAS_SLOPE:
        slope_tile = load_float32(slope + first * channels, at, ok)
        positive *= slope_tile
        negative *= slope_tile
    if HAS_OFFSET:
        offset_tile = load_float32(offset + first * channels, at, ok)
        positive += offset_tile
        negative += offset_tile
    is_open = logit < CLOSED
    out_dtype = h.dtype.element_ty
    positive = tl.where(is_open, positive * mask, 0.0)
    negative = tl.where(is_open, negative * (1.0 - mask), 0.0)
    tl.store(h + first * h_stride + q * h_stride + c, positive.to(out_dtype), ok)
    tl.store(h + first_negative * h_stride + q * h_stride + c, negative.to(out_dtype), ok)


@triton.jit(do_not_specialize=["pixels", "rows", "per_row"])
def site_backward_kernel(
    dz, g1, g2, tail, seeds, product_scales, active_streams, h, scale, logits, squares, slope,
    iteration, rate,
    pixels, rows, per_row, channels, g1_stride, g2_stride, h_stride,
    dz_channels, g1_channels, g2_channels, tail_channels, scale_channels, g1_summand_stride,
    HAS_SLOPE: tl.constexpr, BOTH_STREAMS: tl.constexpr, IS_COMPACT: tl.constexpr,
    SUMMANDS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Pass the gradient with respect to h back through the site, and take an RMSProp step.

    The gradient with respect to h is g1 + g2 + tail · seed: of one stream per row, given by
    `active_streams`, or of both, stacked, if `BOTH_STREAMS`. It is multiplied by the row's scale
    and its product with h by `product_scales`, which is divided out before RMSProp. g1 is a sum of
    `SUMMANDS` tensors, `g1_summand_stride` elements apart. Reads `h` as the forward kernel wrote
    it; updates `logits` and `squares` in place; writes `dz`, the gradient with respect to each
    term, unless `dz_channels` is 0.
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
    factor = tl.load(scale + c, c < scale_channels, other=1.0)
    if HAS_SLOPE:
        factor = factor * load_float32(slope + first * channels, at, ok)
    factor = tl.where(is_open, factor, 0.0)
    writes_dz = ok & (c < dz_channels)
    out_dtype = dz.dtype.element_ty
    tail_gradient = load_optional_tile(tail, first, q, c, ok, channels, tail_channels)
    g = tail_gradient * tl.load(seeds + row)
    g += load_optional_tile(g1, first, q, c, ok, g1_stride, g1_channels)
    for k in tl.static_range(1, SUMMANDS):
        g += load_optional_tile(g1 + k * g1_summand_stride, first, q, c, ok, g1_stride, g1_channels)
    g += load_optional_tile(g2, first, q, c, ok, g2_stride, g2_channels)
    g = clamp_to_float16(g, out_dtype)
    if BOTH_STREAMS:
        first_negative = first + all_pixels
        g_negative = tail_gradient * tl.load(seeds + rows + row)
        g_negative += load_optional_tile(g1, first_negative, q, c, ok, g1_stride, g1_channels)
        for k in tl.static_range(1, SUMMANDS):
            g_negative += load_optional_tile(
                g1 + k * g1_summand_stride, first_negative, q, c, ok, g1_stride, g1_channels
            )
        g_negative += load_optional_tile(g2, first_negative, q, c, ok, g2_stride, g2_channels)
        g_negative = clamp_to_float16(g_negative, out_dtype)
        change = g * (1.0 - mask) * load_float32(h + first * h_stride, q * h_stride + c, ok)
        change -= (
            g_negative * mask * load_float32(h + first_negative * h_stride, q * h_stride + c, ok)
        )
        tl.store(dz + at, clamp_to_float16(g * mask * factor, out_dtype).to(out_dtype), writes_dz)
        dz_negative = clamp_to_float16(g_negative * (1.0 - mask) * factor, out_dtype)
        tl.store(dz + all_pixels * channels + at, dz_negative.to(out_dtype), writes_dz)
    else:
        stream = tl.load(active_streams + row)
        active_h = h + first * h_stride + stream * (all_pixels * h_stride)
        change = (
            g
            * load_float32(active_h, q * h_stride + c, ok)
            * tl.where(stream == 0, 1.0 - mask, -mask)
        )
        passed = g * factor * tl.where(stream == 0, mask, 1.0 - mask)
        tl.store(dz + at, clamp_to_float16(passed, out_dtype).to(out_dtype), writes_dz)
    change = tl.where(is_open, change / tl.load(product_scales + row), 0.0)
    element = (pixel - row * per_row) * channels + c
    now = tl.load(iteration)
    rmsprop_step(logits, squares, at, ok, logit, square, change, rate, element, now, IS_COMPACT)


TILE_ELEMENTS = 256
WARPS = 1
"""The number of elements and warps per program. An iteration of ResNet50 on an H200 takes 857 µs
for one image, 1718 µs for eight and 8.94 ms for 64; with 1024 elements and four warps, it takes
882 µs, 1726 µs and 8.98 ms."""


@dataclass(frozen=True)
class PixelLayout:
    """A tensor as a matrix of pixels by channels: element (p, c) lies at p · stride + c."""

    pixels: int
    channels: int
    stride: int


def pixel_layout(tensor: Tensor) -> PixelLayout | None:
    """Return a tensor's layout if its memory is pixels by channels, else None.

    Images may be a slice of other images along the channels.
    """
    if tensor.dim() == 4:
        rows, channels, height, width = tensor.shape
        stride = tensor.stride(3) if width > 1 else tensor.stride(2) if height > 1 else channels
        expected = (height * width * stride, 1, width * stride, stride)
        sizes_and_strides = zip(tensor.shape, tensor.stride(), expected, strict=True)
        regular = all(
            size == 1 or actual == required for size, actual, required in sizes_and_strides
        )
        return PixelLayout(rows * height * width, channels, stride) if regular else None
    if not tensor.is_contiguous():
        return None
    channels = tensor[0].numel()
    return PixelLayout(len(tensor), channels, channels)


def as_pixels(tensor: Tensor) -> tuple[Tensor, PixelLayout]:
    """Return a tensor as pixels by channels in memory, copied if needed, and its layout."""
    layout = pixel_layout(tensor)
    if layout is None:
        tensor = channels_last(tensor)
        layout = pixel_layout(tensor)
    assert layout is not None
    return tensor, layout


class TritonSite:
    """A gate with its masks, and the bias, sum or batch norm fused into it."""

    def __init__(self, fused: FusedGate, logits: Tensor, learning: LearningState) -> None:
        line = fused.gate.function
        assert isinstance(line, ElementwiseLine)
        slope = line.slope.expand(logits.shape)
        offset = None if line.offset is None else line.offset.expand(logits.shape)
        is_plain = slope.dtype == torch.bool and offset is None
        is_open = slope if is_plain else slope != 0
        is_open = is_open if offset is None else is_open | (offset != 0)
        self._state = MaskState(logits, is_open, learning)
        self._slope = None if is_plain else channels_last(slope.to(learning.dtype))
        unit = learning.unit
        self._offset = None if offset is None else channels_last((offset * unit).to(learning.dtype))
        self._scale = None if fused.scale is None else fused.scale.float().contiguous()
        self._shift = None if fused.shift is None else fused.shift.float().contiguous() * unit
        self._learning = learning
        self._rows = len(logits)
        layout = pixel_layout(self._state.logits)
        assert layout is not None
        self._layout = layout
        self._out: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The current mask logits."""
        return self._state.decoded()

    def pass_gradient(
        self, gradient: Tensor, slope: Tensor, gradient_range: GradientRange | None
    ) -> Tensor:
        """Pass both streams' gradients through the gate and its masks."""
        is_plain = self._slope is None
        return pass_gate(gradient, self._state.logits, None if is_plain else slope, gradient_range)

    def forward(self, terms: Sequence[Tensor | SharedValue | SplitSum]) -> Tensor:
        """Return both streams' output."""
        learning, layout = self._learning, self._layout
        shape = list(self._state.logits.shape)
        out = empty_channels_last((2 * shape[0], *shape[1:]), learning.dtype, self._state.logits)
        out_layout = as_pixels(out)[1]
        terms = split_sum_first(terms, learning.dtype)
        first, *rest = [operand(term) for term in terms]
        second = rest[0] if rest else (out, out_layout.stride, 1)
        launch(
            site_forward_kernel, launch_grid(layout),
            out, first[0], second[0], or_placeholder(self._scale, learning.scales),
            or_placeholder(self._shift, learning.scales),
            self._state.logits, or_placeholder(self._slope, out), or_placeholder(self._offset, out),
            layout.pixels, layout.channels, out_layout.stride, first[1], second[1],
            first[2], second[2],
            summand_stride(terms[0]), layout.channels if rest else 0, channel_count(self._scale),
            channel_count(self._shift),
            HAS_SLOPE=self._slope is not None, HAS_OFFSET=self._offset is not None,
            IS_COMPACT=learning.is_compact, SUMMANDS=summand_count(terms[0]),
            **tile_settings(layout),
        )  # fmt: skip
        self._out = out
        return out

    def backward(self, gradient: StreamGradient, *, needs_input_gradient: bool) -> Tensor | None:
        """Take an RMSProp step; return the gradient with respect to each term if needed."""
        assert self._out is not None
        learning, layout, out = self._learning, self._layout, self._out
        shape = list(out.shape) if learning.touches_both_streams else [self._rows, *out.shape[1:]]
        result = empty_channels_last(shape, learning.dtype, out) if needs_input_gradient else None
        first, second = gradient_operands(gradient, out)
        launch(
            site_backward_kernel, launch_grid(layout),
            or_placeholder(result, out), first[0], second[0], or_placeholder(gradient.tail,
            learning.scales),
            learning.seeds, learning.product_scales, learning.active_streams, out,
            or_placeholder(self._scale, learning.scales), self._state.logits, self._state.squares,
            or_placeholder(self._slope, out), learning.iteration, learning.learning_rate,
            layout.pixels, self._rows, layout.pixels // self._rows, layout.channels,
            first[1], second[1], as_pixels(out)[1].stride,
            *present_channels(layout, result, gradient), channel_count(self._scale),
            summand_stride(gradient.split),
            HAS_SLOPE=self._slope is not None, BOTH_STREAMS=learning.touches_both_streams,
            IS_COMPACT=learning.is_compact, SUMMANDS=summand_count(gradient.split),
            **tile_settings(layout),
        )  # fmt: skip
        self._out = None
        return result


def operand(term: Tensor | SharedValue | SplitSum) -> tuple[Tensor, int, int]:
    """Return a term's tensor, its stride from pixel to pixel, and 0 if streams share it, else 1."""
    if isinstance(term, SplitSum):
        return term.summands, term.summands.shape[-1], 1
    shared = isinstance(term, SharedValue)
    tensor, layout = as_pixels(term.value if isinstance(term, SharedValue) else term)
    return tensor, layout.stride, 0 if shared else 1


def split_sum_first(
    terms: Sequence[Tensor | SharedValue | SplitSum], dtype: torch.dtype
) -> Sequence[Tensor | SharedValue | SplitSum]:
    """Return the terms with a split sum first, where the kernel adds it up.

    Any other split sum is added up here.
    """
    split = [term for term in terms if isinstance(term, SplitSum)]
    others = [term for term in terms if not isinstance(term, SplitSum)]
    return [*split[:1], *(term.total(dtype) for term in split[1:]), *others]


def summand_count(value: Tensor | SharedValue | SplitSum | None) -> int:
    """Return the number of tensors that a value is the sum of."""
    return len(value.summands) if isinstance(value, SplitSum) else 1


def summand_stride(value: Tensor | SharedValue | SplitSum | None) -> int:
    """Return the number of elements from one summand to the next, zero for other values."""
    return value.summands[0].numel() if isinstance(value, SplitSum) else 0


def channel_count(tensor: Tensor | None) -> int:
    """Return the number of channels of a per-channel operand, zero if it is missing."""
    return 0 if tensor is None else len(tensor)


def present_channels(
    layout: PixelLayout, result: Tensor | None, gradient: StreamGradient
) -> list[int]:
    """Return the number of channels of the result, g1, g2 and the tail, zero for missing ones."""
    parts = len(gradient.parts) + (gradient.split is not None)
    present = (result is not None, parts > 0, parts > 1, gradient.tail is not None)
    return [layout.channels if is_present else 0 for is_present in present]


def gradient_operands(gradient: StreamGradient, like: Tensor) -> list[tuple[Tensor, int]]:
    """Return g1 and g2 with their strides.

    `like` stands in for a missing one; the kernel never reads a stand-in.
    """
    split = [] if gradient.split is None else [gradient.split]
    pairs = [operand(part)[:2] for part in (*split, *gradient.parts)]
    return [*pairs, (like, 0), (like, 0)][:2]


def or_placeholder(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """Return `tensor`, or `stand_in` if it is None; the kernel never reads a stand-in.

    Kernels are compiled for the dtypes of their arguments, so None, or a stand-in of another dtype,
    would compile another kernel.
    """
    return stand_in if tensor is None else tensor


def empty_channels_last(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """Return an uninitialised tensor on the device of `like`, channels-last if it has images."""
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(*shape, dtype=dtype, device=like.device, memory_format=order)


def _width(layout: PixelLayout) -> int:
    """Return a tile's channels: all, rounded up to a power of two, between 16 and 64."""
    return min(64, max(16, 1 << (layout.channels - 1).bit_length()))


def tile_settings(layout: PixelLayout) -> dict[str, Any]:
    """Return the kernels' tile sizes and number of warps."""
    width = _width(layout)
    return {"TILE": TILE_ELEMENTS // width, "WIDTH": width, "num_warps": WARPS}


def launch_grid(layout: PixelLayout) -> tuple[int, int]:
    """Return the launch grid: tiles of pixels by tiles of channels."""
    width = _width(layout)
    tile = TILE_ELEMENTS // width
    return -(-layout.pixels // tile), -(-layout.channels // width)
