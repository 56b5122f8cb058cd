"""How the worth of places is spread over their pixels.

Windows say what a place is worth, but not where in it the evidence is. A stream does: it has a
value above zero for every pixel. A `Detail` spreads worth as a stream does, sharply or softly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.decompose.windows import Windows


@dataclass(frozen=True)
class Detail:
    """How the worth of a place is spread over its pixels.

    A pixel gets worth · (floor + (1 − floor) · stream / mean of the stream).

    Args:
        name: What it is called.
        floor: The share that is spread evenly.
        smoothing: The width of the Gaussian that the stream is smoothed with, as a share of the
            window's side.
        power: What the worth of places is raised to. Below 1, the streams decide more about which
            place is stronger, and the mean of a stream is that of the whole image. At 1 it is the
            geometric mean of this and of the mean inside a window around the pixel.
    """

    name: str
    floor: float
    smoothing: float = 0.0
    power: float = 1.0


DETAILS = (
    Detail("streams", 0.0, power=0.5),
    Detail("medium", 0.4),
    Detail("soft", 0.5, smoothing=1 / 28),
    Detail("windows", 1.0),
)
"""The details that the model chooses from, from sharp to even."""

BLUE_DETAIL = Detail("blue", 0.5, smoothing=1 / 14)

FADING = 0.25
"""Below this share of the largest worth, detail fades: places that count little have little."""

EDGE_SMOOTHING = 3 / 56
"""Width of the Gaussian that smooths the edges of windows, as a share of their side."""


def spread(stream: Tensor, detail: Detail, windows: Windows, worth: Tensor) -> Tensor:
    """Spread the worth of places over their pixels as a stream does, (rows, *size)."""
    worth = worth.clamp(min=0)
    if detail.floor == 1:
        return worth
    tiny = torch.finfo(stream.dtype).tiny
    smooth = gaussian(stream, [detail.smoothing * side for side in windows.side])
    mean = mean_of_rows(smooth)
    if detail.power == 1:
        mean = (box_mean(smooth, windows.side).clamp(min=0) * mean).sqrt()
    relative = detail.floor + (1 - detail.floor) * smooth / mean.clamp(min=tiny)
    average = mean_of_rows(worth).clamp(min=tiny)
    spread_out = average * (worth / average) ** detail.power * relative
    largest = worth.flatten(1).amax(1).clamp(min=tiny)
    shown = (worth / (FADING * expand_rows(largest, worth))).clamp(max=1)
    return shown * spread_out + (1 - shown) * worth


def smooth_edges(values: Tensor, windows: Windows) -> Tensor:
    """Smooth the values of places, so that the edges of windows do not show."""
    return gaussian(values, [EDGE_SMOOTHING * side for side in windows.side])


def box_mean(values: Tensor, side: tuple[int, ...]) -> Tensor:
    """Return the mean of `values`, (rows, *size), inside a window around each pixel."""

    def along(lines: Tensor, side: int) -> Tensor:
        half = min(side // 2, lines.shape[-1] - 1)
        return functional.avg_pool1d(lines, 2 * half + 1, 1, half, count_include_pad=False)

    return _along_each(values, side, along)


def gaussian(values: Tensor, sigmas: list[float]) -> Tensor:
    """Smooth `values`, (rows, *size), by a Gaussian of so many pixels along each dimension."""

    def along(lines: Tensor, sigma: float) -> Tensor:
        if sigma < 1 / 3:
            return lines
        radius = round(3 * sigma)
        positions = torch.arange(-radius, radius + 1, device=lines.device, dtype=lines.dtype)
        kernel = torch.exp(-0.5 * (positions / sigma) ** 2)
        padded = functional.pad(lines, (radius, radius), mode="replicate")
        return functional.conv1d(padded, (kernel / kernel.sum()).view(1, 1, -1))

    return _along_each(values, sigmas, along)


MOST_SMOOTHED = 2**22
"""The most numbers that are smoothed at once; on a CPU, a convolution takes many times as much."""


def _along_each(values: Tensor, sizes: Any, function: Callable[[Tensor, Any], Tensor]) -> Tensor:
    """Apply a function of lines, (lines, 1, length), along each dimension after the first."""
    for dim, size in enumerate(sizes, 1):
        lines = values.movedim(dim, -1)
        length = lines.shape[-1]
        parts = lines.reshape(-1, 1, length).split(max(1, MOST_SMOOTHED // length))
        results = [function(part, size) for part in parts]
        result = results[0] if len(results) == 1 else torch.cat(results)
        values = result.view(lines.shape).movedim(-1, dim)
    return values


def mean_of_rows(values: Tensor) -> Tensor:
    """Return the mean of each row, to be broadcast over its pixels."""
    return expand_rows(values.flatten(1).mean(1), values)


def expand_rows(values: Tensor, like: Tensor) -> Tensor:
    """Return one value for each row, to be broadcast over the pixels of `like`."""
    return values.view(-1, *(1,) * (like.dim() - 1))
