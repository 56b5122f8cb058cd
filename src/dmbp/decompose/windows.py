"""Windows that cover an input.

Images have square windows (or their shape, if they are not square), signals have intervals, volumes
have blocks. The entries of a vector have no neighbours: each is a window of its own. Windows
overlap, so every pixel is in several of them; `Windows.paint` gives it their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

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
    """Windows over inputs of one size.

    Attributes:
        masks: The pixels of each window, (windows, *size).
        side: The length of a window along each dimension.
    """

    masks: Tensor
    side: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.masks)

    @property
    def size(self) -> tuple[int, ...]:
        """The size of the inputs."""
        return tuple(self.masks.shape[1:])

    @property
    def are_pixels(self) -> bool:
        """Whether each window is a single pixel, so that there is no detail inside it."""
        return max(self.side) == 1

    def paint(self, values: Tensor) -> Tensor:
        """Return the mean of the windows over each pixel, (rows, *size), from (rows, windows)."""
        masks = self.masks.flatten(1).to(values.dtype)
        return (values @ masks / masks.sum(0)).view(-1, *self.size)


def windows_over(
    inputs: Tensor, window: float | None, stride: float | None, *, is_fine: bool = False
) -> Windows:
    """Return windows over inputs of this shape; None takes the default of their dimension.

    Args:
        inputs: The inputs, (rows, …).
        window: The side of a window as a share of the input's side.
        stride: The distance between windows as a share of the input's side.
        is_fine: Whether images have smaller windows by default.

    Raises:
        InputError: If that makes too many windows, or windows with gaps between them.
    """
    size = pixel_size(inputs)
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
    return _windows(size, window, stride, inputs.device)


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _windows(size: tuple[int, ...], window: float, stride: float, device: torch.device) -> Windows:
    sides = tuple(min(length, max(1, round(window * length))) for length in size)
    starts = [_starts(length, side, stride) for length, side in zip(size, sides, strict=True)]
    count = math.prod(len(positions) for positions in starts)
    if count > MAX_WINDOWS:
        raise InputError(
            f"window={window:g} and stride={stride:g} make {count} windows; at most {MAX_WINDOWS} "
            "are tested, use a larger stride"
        )
    masks = torch.zeros(count, *size, dtype=torch.bool)
    for mask, corner in zip(masks, product(*starts), strict=True):
        mask[tuple(slice(k, k + side) for k, side in zip(corner, sides, strict=True))] = True
    return Windows(masks.to(device), sides)


def _starts(length: int, side: int, stride: float) -> Sequence[int]:
    """Return where windows begin along one dimension: evenly spaced, from end to end."""
    step = max(1.0, stride * length)
    gaps = math.ceil((length - side) / step - 1e-9)
    return [round(k * (length - side) / gaps) for k in range(gaps + 1)] if gaps else [0]


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
