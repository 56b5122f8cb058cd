"""Sites in Triton: masks, RMSProp's state, and the kernels that move them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_kernels
from dmbp.engine.learning import Gradient, Learning, Shared, seeded
from dmbp.engine.merging import Merged
from dmbp.engine.streams import in_order
from dmbp.engine.triton_launch import launch
from dmbp.linear.choices import Gather
from dmbp.linear.gates import Piece

kernels: Any = triton_kernels  # whose arguments Triton reads in its own way

CLOSED_CODE: int = kernels.CLOSED_CODE.value
CODES: float = kernels.CODES.value

TILE_ELEMENTS = 1024
WARPS = 4


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
        tensor = in_order(tensor)
        grid = grid_of(tensor)
    assert grid is not None
    return tensor, grid


class MaskState:
    """Logits and RMSProp's squares of some elements, channels-last, as the kernels keep them."""

    def __init__(self, logits: Tensor, is_open: Tensor, learning: Learning) -> None:
        if learning.is_compact:
            codes = (logits * CODES).round().clamp(-CLOSED_CODE + 1, CLOSED_CODE - 1)
            kept, closed = codes.to(torch.int16), CLOSED_CODE
        else:
            kept, closed = logits.float(), torch.inf
        self.logits = in_order(torch.where(is_open, kept, torch.full_like(kept, closed)))
        self.squares = torch.zeros_like(self.logits)

    def learned(self) -> Tensor:
        """The logits in single precision; zero where closed, which no value depends on."""
        if self.logits.dtype == torch.int16:
            return torch.where(self.logits == CLOSED_CODE, 0, self.logits.float() / CODES)
        return torch.where(torch.isinf(self.logits), 0, self.logits)


class TritonSite:
    """A gate with the bias, sum or batch norm before it."""

    def __init__(self, merged: Merged, logits: Tensor, learning: Learning) -> None:
        piece = merged.gate.function
        assert isinstance(piece, Piece)
        slope = piece.slope.expand(logits.shape)
        offset = None if piece.offset is None else piece.offset.expand(logits.shape)
        is_open = slope != 0 if offset is None else (slope != 0) | (offset != 0)
        is_plain = slope.dtype == torch.bool and offset is None
        self._state = MaskState(logits, is_open, learning)
        self._slope = None if is_plain else in_order(slope.to(learning.dtype))
        self._offset = None if offset is None else in_order(offset.to(learning.dtype))
        self._scale = None if merged.scale is None else merged.scale.float().contiguous()
        self._shift = None if merged.shift is None else merged.shift.float().contiguous()
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

    def forward(self, terms: Sequence[Tensor | Shared]) -> Tensor:
        """Both streams past the activation and their masks."""
        shape = list(self._state.logits.shape)
        out = _empty((2 * shape[0], *shape[1:]), self._learning.dtype, self._state.logits)
        first, *rest = [_term(term) for term in terms]
        second = rest[0] if rest else first
        place = laid_out(out)[1]
        grid = self._grid
        launch(
            kernels.masked_forward, _programs(grid),
            out, first[0], second[0], _or(self._scale, out), _or(self._shift, out),
            self._state.logits, _or(self._slope, out), _or(self._offset, out),
            grid.pixels, grid.channels, place.stride, first[1], second[1], first[2], second[2],
            grid.channels if rest else 0, _size(self._scale), _size(self._shift),
            HAS_SLOPE=self._slope is not None, HAS_OFFSET=self._offset is not None,
            IS_COMPACT=self._learning.is_compact, **_tile(grid),
        )  # fmt: skip
        self._out = out
        return out

    def backward(self, gradient: Gradient, *, goes_on: bool) -> Tensor | None:
        """The gradient in what the gate reads, where it `goes_on`; the masks descend."""
        assert self._out is not None
        learning, grid, out = self._learning, self._grid, self._out
        shape = list(out.shape) if learning.is_both else [self._rows, *out.shape[1:]]
        result = _empty(shape, learning.dtype, out) if goes_on else None
        first, second = _parts(gradient, out)
        launch(
            kernels.masked_backward, _programs(grid),
            _or(result, out), first[0], second[0], _or(gradient.tail, out), learning.seeds,
            learning.streams, out, _or(self._scale, out), self._state.logits, self._state.squares,
            _or(self._slope, out), learning.iteration, learning.rate,
            grid.pixels, self._rows, grid.pixels // self._rows, grid.channels,
            first[1], second[1], laid_out(out)[1].stride,
            *_channels(grid, result, gradient), _size(self._scale),
            HAS_SLOPE=self._slope is not None, IS_BOTH=learning.is_both,
            IS_COMPACT=learning.is_compact, **_tile(grid),
        )  # fmt: skip
        self._out = None
        return result


class PooledTritonSite:
    """A ReLU with the bias before it and the max-pooling behind it.

    Masks of pixels that win no window change nothing and never move. Where windows do not overlap,
    state is kept for winners alone, one a window.
    """

    def __init__(self, merged: Merged, logits: Tensor, learning: Learning) -> None:
        piece, pooling = merged.gate.function, merged.pooling
        assert isinstance(piece, Piece)
        assert pooling is not None
        assert isinstance(pooling.step.function, Gather)
        index = pooling.step.function.index
        is_open = piece.slope.expand(logits.shape)
        self._pooling = pooling
        self._shift = None if merged.shift is None else merged.shift.float().contiguous()
        self._learning = learning
        self._height, self._width = logits.shape[2:]
        self._winners = in_order(_local(index, self._width, merged).to(torch.uint8))
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

    def forward(self, terms: Sequence[Tensor | Shared]) -> Tensor:
        """Both streams of the winners."""
        (term,) = terms
        rows, channels, *size = self._winners.shape
        out = _empty((2 * rows, channels, *size), self._learning.dtype, self._winners)
        z, stride, streams = _term(term)
        grid = Grid(rows * size[0] * size[1], channels, channels)
        launch(
            kernels.pooled_forward, _programs(grid),
            out, z, _or(self._shift, out), self._state.logits, self._winners,
            *self._sizes(), stride, streams, _size(self._shift),
            **self._windows(), AT_WINDOWS=not self._pooling.overlaps,
            IS_COMPACT=self._learning.is_compact, **_tile(grid),
        )  # fmt: skip
        self._given, self._out = term, out
        return out

    def backward(self, gradient: Gradient, *, goes_on: bool) -> Tensor | None:
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

    def _by_window(self, gradient: Gradient, result: Tensor | None) -> None:
        learning, out = self._learning, self._out
        assert out is not None
        first, second = _parts(gradient, out)
        pixels, windows, channels, *sides = self._sizes()
        grid = Grid(windows, channels, channels)
        launch(
            kernels.pooled_backward_by_window, _programs(grid),
            _or(result, out), first[0], second[0], _or(gradient.tail, out), learning.seeds,
            learning.streams, out, self._state.logits, self._state.squares, self._winners,
            learning.iteration, learning.rate, pixels, windows, len(self._winners), channels,
            *sides, first[1], second[1], *_channels(grid, result, gradient),
            **self._windows(), IS_BOTH=learning.is_both, IS_COMPACT=learning.is_compact,
            **_tile(grid),
        )  # fmt: skip

    def _by_pixel(self, gradient: Gradient, result: Tensor | None) -> None:
        learning, out = self._learning, self._out
        assert out is not None
        assert self._given is not None
        parts = list(gradient.parts)
        if gradient.tail is not None:  # no network ends so; in plain terms
            parts = [sum(parts[1:], parts[0]) if parts else None, seeded(gradient.tail, learning)]
            parts = [part for part in parts if part is not None]
        first, second = _parts(Gradient(parts), out)
        z, stride, streams = _term(self._given)
        pixels, windows, channels, *sides = self._sizes()
        grid = Grid(pixels, channels, channels)
        launch(
            kernels.pooled_backward_by_pixel, _programs(grid),
            _or(result, out), first[0], second[0], learning.streams, z, _or(self._shift, out),
            self._state.logits, self._state.squares, self._winners, learning.iteration,
            learning.rate, pixels, windows, len(self._winners), channels, *sides,
            first[1], second[1], stride, streams,
            0 if result is None else channels, channels if len(parts) > 1 else 0,
            _size(self._shift), **self._windows(), IS_BOTH=learning.is_both,
            IS_COMPACT=learning.is_compact, **_tile(grid),
        )  # fmt: skip

    def _result(self) -> Tensor:
        """Where the gradient goes: zero once and for all at pixels outside all windows."""
        rows, channels = self._winners.shape[:2]
        rows = 2 * rows if self._learning.is_both else rows
        shape = (rows, channels, self._height, self._width)
        _, _, _, _, _, out_height, out_width = self._sizes()
        reach = [side * self._pooling.stride for side in (out_height, out_width)]
        gapless = self._pooling.kernel == self._pooling.stride and self._pooling.padding == 0
        covered = gapless and reach[0] >= self._height and reach[1] >= self._width
        if covered or self._pooling.overlaps:
            return _empty(shape, self._learning.dtype, self._winners)
        if self._zeroed is None:
            self._zeroed = _empty(shape, self._learning.dtype, self._winners).zero_()
        return self._zeroed

    def _sizes(self) -> tuple[int, int, int, int, int, int, int]:
        rows, channels, out_height, out_width = self._winners.shape
        pixels, windows = rows * self._height * self._width, rows * out_height * out_width
        return pixels, windows, channels, self._height, self._width, out_height, out_width

    def _windows(self) -> dict[str, int]:
        pooling = self._pooling
        return {"KERNEL": pooling.kernel, "STRIDE": pooling.stride, "PADDING": pooling.padding}


def _local(index: Tensor, width: int, merged: Merged) -> Tensor:
    """Winners as places in their windows, counted row by row."""
    pooling = merged.pooling
    assert pooling is not None
    down = torch.arange(index.shape[2], device=index.device) * pooling.stride - pooling.padding
    along = torch.arange(index.shape[3], device=index.device) * pooling.stride - pooling.padding
    return (index // width - down[:, None]) * pooling.kernel + index % width - along


def _term(term: Tensor | Shared) -> tuple[Tensor, int, int]:
    """A tensor, its stride from pixel to pixel, and 1, or 0 where both streams share it."""
    shared = isinstance(term, Shared)
    tensor, grid = laid_out(term.value if isinstance(term, Shared) else term)
    return tensor, grid.stride, 0 if shared else 1


def _size(tensor: Tensor | None) -> int:
    """Channels of what may be missing."""
    return 0 if tensor is None else len(tensor)


def _channels(grid: Grid, result: Tensor | None, gradient: Gradient) -> list[int]:
    """Channels of the result, of both parts of a gradient and of the tail's: zero if missing."""
    parts = len(gradient.parts)
    present = (result is not None, parts > 0, parts > 1, gradient.tail is not None)
    return [grid.channels if there else 0 for there in present]


def _parts(gradient: Gradient, like: Tensor) -> list[tuple[Tensor, int]]:
    """Two tensors and their strides; what is missing is stood in for and not read."""
    given = [laid_out(part) for part in gradient.parts]
    pairs = [(tensor, grid.stride) for tensor, grid in given]
    return [*pairs, (like, 0), (like, 0)][:2]


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    return stand_in if tensor is None else tensor


def _empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(*shape, dtype=dtype, device=like.device, memory_format=order)


def _width(grid: Grid) -> int:
    """Channels of a tile: all up to 64, in powers of two."""
    return min(64, max(16, 1 << (grid.channels - 1).bit_length()))


def _tile(grid: Grid) -> dict[str, Any]:
    width = _width(grid)
    return {"TILE": TILE_ELEMENTS // width, "WIDTH": width, "num_warps": WARPS}


def _programs(grid: Grid) -> tuple[int, int]:
    width = _width(grid)
    tile = TILE_ELEMENTS // width
    return -(-grid.pixels // tile), -(-grid.channels // width)
