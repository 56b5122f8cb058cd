"""A ReLU's site with the max-pooling behind it, in Triton."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dmbp.engine import triton_pool_kernels
from dmbp.engine.learning import Gradient, Learning, Shared, seeded
from dmbp.engine.merging import Merged
from dmbp.engine.scaling import GradientRange
from dmbp.engine.triton_gates import past
from dmbp.engine.triton_launch import launch
from dmbp.engine.triton_site import (
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
from dmbp.engine.triton_unpooling import winners_of
from dmbp.linear.piece import Piece

kernels: Any = triton_pool_kernels  # whose arguments Triton reads in its own way


class PooledTritonSite:
    """A ReLU with the bias before it and the max-pooling behind it.

    Masks of pixels that win no window change nothing and never move. Where windows do not overlap,
    state is kept for winners alone, one a window.
    """

    def __init__(self, merged: Merged, logits: Tensor, learning: Learning) -> None:
        piece, pooling = merged.gate.function, merged.pooling
        assert isinstance(piece, Piece)
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
            kernels.pooled_forward, programs(grid),
            out, z, either(self._shift, learning.scales), self._state.logits, self._winners,
            *self._sizes(), stride, streams, size_of(self._shift),
            **self._windows(), AT_WINDOWS=not self._pooling.overlaps,
            IS_COMPACT=learning.is_compact, **tile(grid),
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
        first, second = parts_of(gradient, out)
        pixels, windows, channels, *sides = self._sizes()
        grid = Grid(windows, channels, channels)
        launch(
            kernels.pooled_backward_by_window, programs(grid),
            either(result, out), first[0], second[0], either(gradient.tail, learning.scales),
            learning.seeds, learning.products, learning.streams, out, self._state.logits,
            self._state.squares, self._winners, learning.iteration, learning.rate, pixels,
            windows, len(self._winners), channels, *sides, first[1], second[1],
            *channels_of(grid, result, gradient),
            **self._windows(), IS_BOTH=learning.is_both, IS_COMPACT=learning.is_compact,
            **tile(grid),
        )  # fmt: skip

    def _by_pixel(self, gradient: Gradient, result: Tensor | None) -> None:
        learning, out = self._learning, self._out
        assert out is not None
        assert self._given is not None
        parts = list(gradient.parts)
        if gradient.tail is not None:  # no network ends so; in plain terms
            parts = [sum(parts[1:], parts[0]) if parts else None, seeded(gradient.tail, learning)]
            parts = [part for part in parts if part is not None]
        first, second = parts_of(Gradient(parts), out)
        z, stride, streams = term_of(self._given)
        pixels, windows, channels, *sides = self._sizes()
        grid = Grid(pixels, channels, channels)
        launch(
            kernels.pooled_backward_by_pixel, programs(grid),
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
