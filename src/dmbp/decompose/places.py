"""What the model says the places of an image are worth.

A window is removed from the image, and it is put alone into an image from which everything else is
removed. What the score loses, and what it gains, is the window's worth, and the worth of a place is
that of the windows over it. The same passes of the model say what a place is worth to the other
classes, its rivals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dmbp.decompose.details import expand_rows, mean_of_rows, smooth_edges
from dmbp.decompose.removal import ChangedImages, WindowWorths
from dmbp.decompose.windows import Shares, WindowRun, Windows, windows_near, windows_over
from dmbp.devices import in_float64
from dmbp.linear.named_target import BoundTarget

SIGNIFICANT = 0.15
"""Places worth less than this share of the largest worth have no colour."""

OWN_WEIGHT = 2.0
"""How much a place's own worth counts, against its worth to the rivals, in the order of pixels
without a colour."""


@dataclass(frozen=True)
class Places:
    """What the windows over each pixel are worth; all tensors are (rows, *size).

    Attributes:
        worth: What the score loses without a window around the pixel, the mean over all tests.
        cost: Minus the worth where every test of `windows` says that it is negative, otherwise 0.
        rivals: What the other classes lose without it, on average over the most probable ones; 0 if
            the target has no rivals.
        windows: The windows whose worth this is; that of finer ones is scaled to their area. Finer
            windows do not decide about cost: what speaks against a class often still does so if a
            part of it is removed.
    """

    worth: Tensor
    cost: Tensor
    rivals: Tensor
    windows: Windows


def window_runs(
    changed: ChangedImages, *, window: Shares | None, stride: float | None, contexts: int
) -> list[WindowRun]:
    """Return how windows are tested.

    They are removed from the image by each tested removal. With two contexts they are also put
    alone into the image that the first removal leaves.
    """
    windows = windows_over(changed.inputs, window, stride)
    fine = windows_over(changed.inputs, window, stride, is_fine=True)
    removed = [WindowRun(k, False, windows if k else fine) for k in changed.tested]
    return removed + [WindowRun(0, True, windows)] * (contexts - 1)


SMALL_REGION, SMALL_WINDOW = 3 / 8, 1 / 10
"""A target that looks at a part of the image up to so wide is tested with smaller windows; both are
shares of the image's side. Of the red for drawn shapes a quarter of the side wide, 88 to 99 % then
lies on the shape (with windows of 1/8 80 to 98 %, with the default's 57 to 90 %)."""

STRIP, STRIP_WINDOW = 2, 1 / 2
"""Images so many times longer than they are high are lines of text: a target that looks at a part
of them is tested with squares of so much of their height. Of the red for the third character of
three words, 84 to 96 % then lies in its columns (with the default's windows, which have the shape
of the image, 74 to 80 %)."""


def window_for(target: object, size: Sequence[int]) -> tuple[float, ...] | None:
    """Return the sides of windows for a target, as shares of an input's sides.

    Args:
        target: The target of a row.
        size: The input's sides, without channels.

    Returns:
        Small windows for a target that looks at a part of an image; None is the default.
    """
    if not isinstance(target, BoundTarget) or len(size) != 2:
        return None
    region, is_local = target.region, target.is_local
    if region is not None and region.any():
        is_local = float(in_float64(region).mean()) ** (1 / region.dim()) <= SMALL_REGION
    if not is_local:
        return None
    if max(size) >= STRIP * min(size):
        return tuple(STRIP_WINDOW * min(size) / side for side in size)
    return (SMALL_WINDOW,) * len(size)


def place_worth(runs: Sequence[WindowRun], worths_of_windows: WindowWorths) -> Places:
    """Return what places are worth, from what `ChangedImages.window_worth` says about windows."""
    windows = runs[-1].windows
    area = windows.area
    worths: list[Tensor] = []
    rivals: list[Tensor] = []
    for run, found in zip(runs, worths_of_windows, strict=True):
        scale = area / run.windows.area
        worth, of_rivals = (run.windows.paint(values) * scale for values in found)
        worths.append(worth)
        rivals.append(of_rivals)
    large = torch.stack([k for k, run in zip(worths, runs, strict=True) if run.windows is windows])
    cost = torch.where((large < 0).all(0), -large.mean(0), 0)
    return Places(torch.stack(worths).mean(0), cost, torch.stack(rivals).mean(0), windows)


NEAR_REGION = 1 / 5
"""Around a target's region up to so wide, as a share of the image's side, windows of half the side
are tested, too. Of the red for boxes that ddddocr's detector found, the share in the box, grown by
half, is then .73–1.00 on the six drawn images that this was designed on (1 and 3 to 7 of
`benchmarks/questions.py`), and .86–1.00 on ten others (0, 2 and 8 to 15); on eight of them it had
been .37–1.00 before."""


def windows_near_regions(
    targets: Sequence[object], windows: Windows, window: Shares | None
) -> dict[int, Windows]:
    """Return the smaller windows around each row's region, if that is small.

    Args:
        targets: The target of each row.
        windows: The windows over the whole image.
        window: What `window_for` says about these targets; without it, there are none.
    """
    found: dict[int, Windows] = {}
    for row, target in enumerate(targets):
        region = target.region if isinstance(target, BoundTarget) else None
        if window is None or region is None or not region.any():
            continue
        if float(in_float64(region).mean()) ** (1 / region.dim()) <= NEAR_REGION:
            device = windows.intervals[0].device
            side = tuple(max(1, length // 2) for length in windows.side)
            found[row] = windows_near(region.to(device), side)
    return found


def sharpen_places(
    places: Places, near: Mapping[int, Windows], changed: ChangedImages, *, contexts: int
) -> Places:
    """Say more exactly where the worth around a small region is.

    A window smears what is in it over twice its side, which is more than a small region. So smaller
    windows are tested around it: there, a place is worth the product of what the windows of both
    sizes over it are worth, scaled so that the worth of all these places stays the same.

    Args:
        places: What the places are worth.
        near: The smaller windows of some rows.
        changed: Runs the model on changed images.
        contexts: As for `window_runs`.
    """
    worth = places.worth.clone()
    for row, windows in near.items():
        smaller = windows.paint(_mean_worth(changed, row, windows, contexts)[None])
        smaller = smooth_edges(smaller, windows)[0].clamp(min=0)
        both = smaller * worth[row].clamp(min=0)
        is_near = _covered(windows) & (worth[row] > 0)
        if both.any():
            total = worth[row][is_near].sum() / both.sum()
            worth[row] = torch.where(is_near, total * both, worth[row])
    return replace(places, worth=worth)


NEAR_TOGETHER = 64
"""How many of the smaller windows have their masks in memory at once."""


def _mean_worth(changed: ChangedImages, row: int, windows: Windows, contexts: int) -> Tensor:
    """Return what each window is worth to a row's score, the mean over all tests, (windows,)."""
    device = changed.score.device
    rows = torch.tensor([row], device=device)
    found: list[Tensor] = []
    for part in torch.arange(len(windows), device=device).split(NEAR_TOGETHER):
        masks = windows.masks(part)[:, None]
        removed = changed.scores([(k, mask) for k in changed.tested for mask in masks], rows)
        worths = [changed.score[row] - removed.view(-1, len(part))]
        if contexts > 1:
            alone = changed.scores([(0, ~mask) for mask in masks], rows)
            worths.append(alone - changed.empty_score[row, 0])
        found.append(torch.cat(worths).mean(0))
    return torch.cat(found)


def _covered(windows: Windows) -> Tensor:
    """Return the pixels that any window covers, (*size)."""
    covered = torch.ones((), dtype=torch.bool, device=windows.intervals[0].device)
    for axis in windows.intervals:
        covered = covered[..., None] & axis.any(0)
    return covered


def smooth_places(places: Places) -> Places:
    """Smooth the worth of places, so that the edges of windows do not show."""
    worth, cost, rivals = (
        smooth_edges(values, places.windows)
        for values in (places.worth, places.cost, places.rivals)
    )
    return replace(places, worth=worth, cost=torch.where(worth < 0, cost, 0), rivals=rivals)


def significance(places: Places) -> Tensor | float:
    """Return what a place must be worth to be red, to be broadcast over pixels.

    A vector's entries are tested one by one, so that none hides behind its neighbours: each counts.
    """
    if places.windows.are_pixels:
        return 0.0
    return SIGNIFICANT * expand_rows(places.worth.flatten(1).amax(1).clamp(min=0), places.worth)


def order_without_colour(places: Places, red_area: Tensor) -> Tensor:
    """Return the order of pixels that have no colour, from 0 to 1; 0 for red ones.

    A place is high if it is worth much to the score, and low if it is worth much to the rivals.
    """
    own, rivals = (
        values / mean_of_rows(values.abs()).clamp(min=torch.finfo(values.dtype).tiny)
        for values in (places.worth, places.rivals)
    )
    order = OWN_WEIGHT * own - rivals
    low, high = (expand_rows(k, order) for k in order.flatten(1).aminmax(dim=1))
    order = (order - low) / (high - low).clamp(min=torch.finfo(order.dtype).tiny)
    return torch.where(red_area, 0, order)
