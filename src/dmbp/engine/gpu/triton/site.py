"""Triton kernels for the masks: all that happens at a site in one pass over memory, each way.

Tensors are channels-last: element (pixel, channel) of a tensor stands at pixel · stride + channel,
pixels counted over all rows of a stream; the negative stream's pixels follow the positive's. A
program takes a tile of pixels by channels. What may be missing comes with its number of channels,
zero where it is, so that one compiled kernel serves with and without; what takes different code
(`HAS_…`, `IS_…`) is settled at compile time. Only within a tile are places counted in 32 bits.

Joining a 1 × 1 convolution to its site in one kernel was tried and is no gain: the matrix product
and a dozen tensors at its end do not fit the registers together (ResNet50, batch of 64 on an H200:
13 ms an iteration at best against 8.5).

Sites in Triton: masks, RMSProp's state, and the kernels that move them.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dmbp.engine.gpu.merging import Merged
from dmbp.engine.gpu.state import GradientRange, LearningState, Shared, Split, StreamGradient
from dmbp.engine.gpu.triton import state as triton_state
from dmbp.engine.gpu.triton.gates import encoded, past
from dmbp.engine.gpu.triton.launch import launch
from dmbp.engine.gpu.triton.state import (
    CLOSED,
    descend,
    load,
    load_logit,
    load_square,
    tile_of,
    within,
)
from dmbp.engine.plan.streams import channels_last
from dmbp.linear.lines import ElementwiseLine


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


CLOSED_CODE: int = triton_state.CLOSED_CODE.value
CODES: float = triton_state.CODES.value

TILE_ELEMENTS = 256
WARPS = 1
"""Of a program. An iteration of ResNet50 on an H200, with these and with 1024 and four, takes 857
and 882 µs for one image, 1718 and 1726 for eight, 8.94 and 8.98 ms for 64."""


@dataclass(frozen=True)
class Grid:
    """A tensor as pixels by channels: element (p, c) of memory is at p · stride + c."""

    pixels: int
    channels: int
    stride: int


def grid_of(tensor: Tensor) -> Grid | None:
    """How a tensor lies in memory, where it is pixels by channels; images may be a slice."""
    if tensor.dim() == 4:
        rows, channels, height, width = tensor.shape
        stride = tensor.stride(3) if width > 1 else tensor.stride(2) if height > 1 else channels
        expected = (height * width * stride, 1, width * stride, stride)
        sizes_and_strides = zip(tensor.shape, tensor.stride(), expected, strict=True)
        regular = all(size == 1 or one == other for size, one, other in sizes_and_strides)
        return Grid(rows * height * width, channels, stride) if regular else None
    if not tensor.is_contiguous():
        return None
    channels = tensor[0].numel()
    return Grid(len(tensor), channels, channels)


def laid_out(tensor: Tensor) -> tuple[Tensor, Grid]:
    """A tensor as pixels by channels, copied where it is not."""
    grid = grid_of(tensor)
    if grid is None:
        tensor = channels_last(tensor)
        grid = grid_of(tensor)
    assert grid is not None
    return tensor, grid


class MaskState:
    """Logits and RMSProp's squares of some elements, channels-last, as the kernels keep them."""

    def __init__(self, logits: Tensor, is_open: Tensor, learning: LearningState) -> None:
        if learning.is_compact:
            self.logits = encoded(logits, is_open)
        else:
            self.logits = channels_last(torch.where(is_open, logits.float(), torch.inf))
        self.squares = torch.zeros_like(self.logits)

    def learned(self) -> Tensor:
        """The logits in single precision; zero where closed, which no value depends on."""
        if self.logits.dtype == torch.int16:
            return torch.where(self.logits == CLOSED_CODE, 0, self.logits.float() / CODES)
        return torch.where(torch.isinf(self.logits), 0, self.logits)


class TritonSite:
    """A gate with the bias, sum or batch norm before it."""

    def __init__(self, merged: Merged, logits: Tensor, learning: LearningState) -> None:
        piece = merged.gate.function
        assert isinstance(piece, ElementwiseLine)
        slope = piece.slope.expand(logits.shape)
        offset = None if piece.offset is None else piece.offset.expand(logits.shape)
        is_plain = slope.dtype == torch.bool and offset is None
        is_open = slope if is_plain else slope != 0
        is_open = is_open if offset is None else is_open | (offset != 0)
        self._state = MaskState(logits, is_open, learning)
        self._slope = None if is_plain else channels_last(slope.to(learning.dtype))
        unit = learning.unit
        self._offset = None if offset is None else channels_last((offset * unit).to(learning.dtype))
        self._scale = None if merged.scale is None else merged.scale.float().contiguous()
        self._shift = None if merged.shift is None else merged.shift.float().contiguous() * unit
        self._learning = learning
        self._rows = len(logits)
        grid = grid_of(self._state.logits)
        assert grid is not None
        self._grid = grid
        self._out: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """The learned scalars as they stand."""
        return self._state.learned()

    def past(self, gradient: Tensor, slope: Tensor, seen: GradientRange | None) -> Tensor:
        """Both streams' gradients past gate and masks; what is closed is marked in the state."""
        is_plain = self._slope is None
        return past(gradient, self._state.logits, None if is_plain else slope, seen)

    def forward(self, terms: Sequence[Tensor | Shared | Split]) -> Tensor:
        """Both streams past the activation and their masks."""
        learning, grid = self._learning, self._grid
        shape = list(self._state.logits.shape)
        out = empty((2 * shape[0], *shape[1:]), learning.dtype, self._state.logits)
        place = laid_out(out)[1]
        terms = split_first(terms, learning.dtype)
        first, *rest = [term_of(term) for term in terms]
        second = rest[0] if rest else (out, place.stride, 1)
        launch(
            masked_forward, programs(grid),
            out, first[0], second[0], either(self._scale, learning.scales),
            either(self._shift, learning.scales),
            self._state.logits, either(self._slope, out), either(self._offset, out),
            grid.pixels, grid.channels, place.stride, first[1], second[1], first[2], second[2],
            apart(terms[0]), grid.channels if rest else 0, size_of(self._scale),
            size_of(self._shift),
            HAS_SLOPE=self._slope is not None, HAS_OFFSET=self._offset is not None,
            IS_COMPACT=learning.is_compact, SUMMANDS=summands(terms[0]), **tile(grid),
        )  # fmt: skip
        self._out = out
        return out

    def backward(self, gradient: StreamGradient, *, goes_on: bool) -> Tensor | None:
        """The gradient in what the gate reads, where it `goes_on`; the masks descend."""
        assert self._out is not None
        learning, grid, out = self._learning, self._grid, self._out
        shape = list(out.shape) if learning.is_both else [self._rows, *out.shape[1:]]
        result = empty(shape, learning.dtype, out) if goes_on else None
        first, second = parts_of(gradient, out)
        launch(
            masked_backward, programs(grid),
            either(result, out), first[0], second[0], either(gradient.tail, learning.scales),
            learning.seeds, learning.products, learning.streams, out,
            either(self._scale, learning.scales), self._state.logits, self._state.squares,
            either(self._slope, out), learning.iteration, learning.rate,
            grid.pixels, self._rows, grid.pixels // self._rows, grid.channels,
            first[1], second[1], laid_out(out)[1].stride,
            *channels_of(grid, result, gradient), size_of(self._scale), apart(gradient.split),
            HAS_SLOPE=self._slope is not None, IS_BOTH=learning.is_both,
            IS_COMPACT=learning.is_compact, SUMMANDS=summands(gradient.split), **tile(grid),
        )  # fmt: skip
        self._out = None
        return result


def term_of(term: Tensor | Shared | Split) -> tuple[Tensor, int, int]:
    """A tensor, its stride from pixel to pixel, and 1, or 0 where both streams share it."""
    if isinstance(term, Split):
        return term.summands, term.summands.shape[-1], 1
    shared = isinstance(term, Shared)
    tensor, grid = laid_out(term.value if isinstance(term, Shared) else term)
    return tensor, grid.stride, 0 if shared else 1


def split_first(
    terms: Sequence[Tensor | Shared | Split], dtype: torch.dtype
) -> Sequence[Tensor | Shared | Split]:
    """Terms of a sum, of which only the first may be split."""
    split = [term for term in terms if isinstance(term, Split)]
    others = [term for term in terms if not isinstance(term, Split)]
    return [*split[:1], *(term.whole(dtype) for term in split[1:]), *others]


def summands(value: Tensor | Shared | Split | None) -> int:
    """How many tensors make up a value."""
    return len(value.summands) if isinstance(value, Split) else 1


def apart(value: Tensor | Shared | Split | None) -> int:
    """Elements from one summand to the next."""
    return value.summands[0].numel() if isinstance(value, Split) else 0


def size_of(tensor: Tensor | None) -> int:
    """Channels of what may be missing."""
    return 0 if tensor is None else len(tensor)


def channels_of(grid: Grid, result: Tensor | None, gradient: StreamGradient) -> list[int]:
    """Channels of the result, of both parts of a gradient and of the tail's: zero if missing."""
    parts = len(gradient.parts) + (gradient.split is not None)
    present = (result is not None, parts > 0, parts > 1, gradient.tail is not None)
    return [grid.channels if there else 0 for there in present]


def parts_of(gradient: StreamGradient, like: Tensor) -> list[tuple[Tensor, int]]:
    """Two tensors and their strides; what is missing is stood in for and not read."""
    given = [] if gradient.split is None else [gradient.split]
    pairs = [term_of(part)[:2] for part in (*given, *gradient.parts)]
    return [*pairs, (like, 0), (like, 0)][:2]


def either(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """A tensor, or one of its type that is not read: kernels are compiled for types."""
    return stand_in if tensor is None else tensor


def empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(*shape, dtype=dtype, device=like.device, memory_format=order)


def _width(grid: Grid) -> int:
    """Channels of a tile: all up to 64, in powers of two."""
    return min(64, max(16, 1 << (grid.channels - 1).bit_length()))


def tile(grid: Grid) -> dict[str, Any]:
    width = _width(grid)
    return {"TILE": TILE_ELEMENTS // width, "WIDTH": width, "num_warps": WARPS}


def programs(grid: Grid) -> tuple[int, int]:
    width = _width(grid)
    tile = TILE_ELEMENTS // width
    return -(-grid.pixels // tile), -(-grid.channels // width)
