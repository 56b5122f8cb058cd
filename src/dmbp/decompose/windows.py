"""Windows that cover an input.

Images have square windows (or their shape, if they are not square), signals have intervals, volumes
have blocks. The entries of a vector have no neighbours: each is a window of its own. Windows
overlap, so every pixel is in several of them; `Windows.paint` gives it their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dmbp.errors import InputError

WINDOW_AND_STRIDE = {1: (1 / 20, 1 / 40), 2: (1 / 4, 1 / 8), 3: (2 / 5, 1 / 5)}
"""Default window and stride by the number of dimensions; about 50 windows each."""

FINE_WINDOW_AND_STRIDE = (5 / 28, 0.12)
"""The same for windows removed from images by the first removal: 64 of them. On VGG16 they gain
.01 in insertion; finer windows in the other tests gain nothing."""

MAX_FEATURES = 128
"""Vectors with more entries than this are tested in groups of neighbours."""

MAX_WINDOWS = 4096


def pixel_size(inputs: Tensor) -> tuple[int, ...]:
    """Return the size of an input without its channels; a vector has none."""
    return tuple(inputs.shape[2:]) if inputs.dim() > 2 else tuple(inputs.shape[1:])


@dataclass(frozen=True)
class Windows:
    """Windows over inputs of one size: every product of one interval from each axis.

    A mask is the outer product of its intervals, so that masks of all windows, which are large for
    volumes and long signals, are never needed at once.

    Attributes:
        intervals: For each axis, the pixels that each interval covers, (intervals, length).
        side: The length of a window along each dimension.
    """

    intervals: tuple[Tensor, ...]
    side: tuple[int, ...]

    def __len__(self) -> int:
        return math.prod(map(len, self.intervals))

    @property
    def size(self) -> tuple[int, ...]:
        """The size of the inputs."""
        return tuple(axis.shape[1] for axis in self.intervals)

    @property
    def area(self) -> float:
        """How many pixels a window has."""
        return float(math.prod(self.side))

    @property
    def are_pixels(self) -> bool:
        """Whether each window is a single pixel, so that there is no detail inside it."""
        return max(self.side) == 1

    def masks(self, which: Tensor) -> Tensor:
        """Return the pixels of the windows with these indices, (*which, *size)."""
        counts = [len(axis) for axis in self.intervals]
        masks = torch.ones((), dtype=torch.bool, device=which.device)
        for axis, index in zip(self.intervals, unravelled(which, counts), strict=True):
            masks = masks[..., None] & _spread(axis[index], which.dim(), masks.dim())
        return masks

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of `values`, (rows, *size), in each window, (rows, windows)."""
        for axis in self.intervals:  # each takes the first axis that is left, and becomes the last
            values = values.movedim(1, -1) @ axis.to(values.dtype).T
        return values.flatten(1)

    def paint(self, values: Tensor) -> Tensor:
        """Return the mean of the windows over each pixel, (rows, *size), from (rows, windows).

        It is 0 where there are no windows.
        """
        values = values.unflatten(1, [len(axis) for axis in self.intervals])
        for axis in self.intervals:
            covers = axis.to(values.dtype)
            values = values.movedim(1, -1) @ (covers / covers.sum(0).clamp(min=1))
        return values


def unravelled(index: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Return the indices along axes with so many entries that a flat index stands for."""
    found: list[Tensor] = []
    for count in reversed(counts):
        found.insert(0, index % count)
        index = index // count
    return found


def _spread(lines: Tensor, batch: int, before: int) -> Tensor:
    """Insert dimensions between the first `batch` ones of lines and their last, to `before`."""
    return lines.view(*lines.shape[:batch], *(1,) * max(0, before - batch), lines.shape[-1])


Shares = float | tuple[float, ...]
"""A share of the input's side, or one for each of its sides."""


def windows_over(
    inputs: Tensor, window: Shares | None, stride: float | None, *, is_fine: bool = False
) -> Windows:
    """Return windows over inputs of this shape; None takes the default of their dimension.

    Args:
        inputs: The inputs, (rows, …).
        window: The side of a window as a share of the input's side. If there is a share for each
            side, windows are half a window apart.
        stride: The distance between windows as a share of the input's side.
        is_fine: Whether images have smaller windows by default.

    Raises:
        InputError: If that makes too many windows, or windows with gaps between them.
    """
    size = pixel_size(inputs)
    if isinstance(window, tuple):
        return _windows(size, window, tuple(side / 2 for side in window), inputs.device)
    if inputs.dim() == 2:
        groups = min(size[0], MAX_FEATURES)
        default = math.ceil(size[0] / groups) / size[0]
        window, stride = window or default, stride or window or default
    elif is_fine and len(size) == 2 and window is None and stride is None:
        window, stride = FINE_WINDOW_AND_STRIDE
    else:
        default_window, default_stride = WINDOW_AND_STRIDE.get(len(size), WINDOW_AND_STRIDE[3])
        scale = 1 if window is None else window / default_window
        window = default_window if window is None else window
        stride = default_stride * scale if stride is None else stride
    if stride > window:
        raise InputError(
            f"stride={stride:g} is larger than window={window:g}, so some pixels would be in no "
            "window"
        )
    axes = len(size)
    return _windows(size, (window,) * axes, (stride,) * axes, inputs.device)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _windows(
    size: tuple[int, ...],
    window: tuple[float, ...],
    stride: tuple[float, ...],
    device: torch.device,
) -> Windows:
    sides = tuple(
        min(length, max(1, round(share * length)))
        for length, share in zip(size, window, strict=True)
    )
    starts = [_starts(*axis) for axis in zip(size, sides, stride, strict=True)]
    count = math.prod(len(positions) for positions in starts)
    if count > MAX_WINDOWS:
        raise InputError(
            f"window={window[0]:g} and stride={stride[0]:g} make {count} windows; at most "
            f"{MAX_WINDOWS} are tested, use a larger stride"
        )
    intervals: list[Tensor] = []
    for length, side, positions in zip(size, sides, starts, strict=True):
        first = torch.tensor(positions)[:, None]
        moments = torch.arange(length)
        intervals.append(((moments >= first) & (moments < first + side)).to(device))
    return Windows(tuple(intervals), sides)


def _starts(length: int, side: int, stride: float) -> Sequence[int]:
    """Return where windows begin along one dimension: evenly spaced, from end to end."""
    step = max(1.0, stride * length)
    gaps = math.ceil((length - side) / step - 1e-9)
    return [round(k * (length - side) / gaps) for k in range(gaps + 1)] if gaps else [0]


def windows_near(mask: Tensor, side: tuple[int, ...]) -> Windows:
    """Return windows of these sides, half a window apart, that cover a mask and what is around it.

    Around the box that holds the mask, two windows are covered on each side.
    """
    intervals: list[Tensor] = []
    for axis, length in enumerate(mask.shape):
        others = [k for k in range(mask.dim()) if k != axis]
        inside = (mask.any(others) if others else mask).nonzero()
        first = max(0, int(inside.min()) - 2 * side[axis])
        last = min(length, int(inside.max()) + 1 + 2 * side[axis])
        starts = _starts(last - first, side[axis], side[axis] / 2 / (last - first))
        begin = first + torch.tensor(starts, device=mask.device)[:, None]
        moments = torch.arange(length, device=mask.device)
        intervals.append((moments >= begin) & (moments < begin + side[axis]))
    return Windows(tuple(intervals), side)


@dataclass(frozen=True)
class WindowRun:
    """One way to test windows: which removal is used, and on which windows.

    Attributes:
        removal: The index of the removal.
        is_alone: Whether a window is put alone into the image that the removal leaves; otherwise it
            is removed from the whole image.
        windows: The windows.
    """

    removal: int
    is_alone: bool
    windows: Windows
