"""Colours that the model itself has confirmed.

The two streams show to the pixel where evidence may be, but not how much it counts, and the sign of
the negative stream is often wrong if a photo shows one object. So the model is asked:

1. **Worth.** Each window is removed from the image, and put alone into an image where all else is
   removed (`windows`). A place is red if its windows are worth something on average, and blue if
   every test says that they cost something.
2. **Detail.** Inside a window, worth is spread over pixels by the streams, sharply or softly: there
   are five candidates (`DETAILS`). The strongest tenth of each candidate's red pixels is removed,
   and put alone into the removed image. The candidate whose tenth restores most of the score is
   taken, among those without whose tenth the score falls, whichever way it is removed.
3. **Confirmation.** The strongest tenth of the blue pixels is removed: unless the score rises
   whichever way they are removed, the map has no blue.

By default windows are removed by a blur and by the image's mean colour, and red and blue must be
confirmed by noise around the mean as well. Last, all red pixels are removed, and all blue ones: red
attributions add up to what the score loses, `worth_for`, and blue ones to what it gains,
`worth_against`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dmbp.decompose.removal import ChangedImages, default_checks, default_removals
from dmbp.decompose.settings import OneRemoval, WindowTest
from dmbp.decompose.windows import Windows, window_worth, windows_over
from dmbp.linear import Question

SHARE = 0.1
"""The share of pixels that are removed, or shown alone, to confirm a colour."""

MARGIN = 0.1
"""Without its blue pixels, a score must rise by this share of what the whole image is worth."""

TIE_BREAK = 1e-4
"""The attribution, relative to the largest, of the least negative place without a colour."""


@dataclass(frozen=True)
class Detail:
    """How the worth of a place is spread over its pixels.

    A pixel gets worth · (floor + (1 − floor) · stream / mean of the stream).

    Args:
        name: What it is called.
        floor: The share that is spread evenly.
        only_lifts: Whether no pixel gets less than the worth of its place.
        smoothing: The width of the Gaussian that the stream is smoothed with, as a share of the
            window's side.
        power: What the worth of places is raised to. Below 1, the streams decide more about which
            place is stronger, and the mean of a stream is that of the whole image. At 1 it is the
            geometric mean of this and of the mean inside a window around the pixel.
    """

    name: str
    floor: float
    only_lifts: bool = False
    smoothing: float = 0.0
    power: float = 1.0


DETAILS = (
    Detail("streams", 0.0, power=0.5),
    Detail("sharp", 0.1),
    Detail("medium", 0.4),
    Detail("soft", 0.0, only_lifts=True, smoothing=1 / 28),
    Detail("windows", 1.0),
)

BLUE_DETAIL = Detail("blue", 0.5, smoothing=1 / 14)

FAINT = 0.05
"""Where the negative stream is fainter than this share of the positive one, it has no detail."""

FADING = 0.25
"""Below this share of the largest worth, detail fades: places that count little have little."""

FIRST_REMOVAL = 0.7
"""How much the first removal counts when the best detail is chosen; the others share the rest."""

EDGE_SMOOTHING = 3 / 56
"""Width of the Gaussian that smooths the edges of windows, as a share of their side."""


@dataclass(frozen=True)
class Tested:
    """What the model said about a map's colours; a row is one target of one image.

    Attributes:
        attribution: The signed attributions in units of the score, shaped like the inputs.
        worth_for: What the score loses if all red pixels are removed, (rows,).
        worth_against: What it gains if all blue pixels are removed, (rows,).
        change_without_positive: How the score changes if the strongest tenth of red pixels is
            removed, by each removal, (rows, removals).
        change_without_negative: The same for blue pixels, 0 if the map has none.
        outputs: The model's outputs for the whole image, (rows, classes).
        outputs_without_positive: Its outputs without the strongest tenth of red pixels, by the
            first removal, (rows, classes).
        outputs_without_negative: The same for blue pixels.
        outputs_without_control: The same for the strongest red pixels' pattern, moved by half the
            image: a control for `outputs_without_positive`.
        detail: The index of each row's `DETAILS`, (rows,).
        removals: The names of the removals.
    """

    attribution: Tensor
    worth_for: Tensor
    worth_against: Tensor
    change_without_positive: Tensor
    change_without_negative: Tensor
    outputs: Tensor
    outputs_without_positive: Tensor
    outputs_without_negative: Tensor
    outputs_without_control: Tensor
    detail: Tensor
    removals: tuple[str, ...]

    @property
    def is_confirmed(self) -> Tensor:
        """Whether the score falls without red pixels, whichever way they are removed, (rows,)."""
        return (self.change_without_positive < 0).all(1)

    @property
    def has_negative(self) -> Tensor:
        """Whether each map has blue pixels, (rows,)."""
        return (self.attribution < 0).flatten(1).any(1)


@torch.no_grad()
def confirm_colours(
    question: Question,
    streams: tuple[Tensor, Tensor],
    test: WindowTest,
    *,
    removals: tuple[OneRemoval, ...] = (),
    run: Callable[[Tensor], Tensor] | None = None,
    dtype: torch.dtype | None = None,
    with_outputs: bool = True,
    on_step: Callable[[], None] | None = None,
) -> Tested:
    """Ask the model what the places of each row's image are worth, and confirm the answer.

    Args:
        question: The images and targets.
        streams: The attributions of the positive and of the negative stream, shaped like the
            inputs.
        test: The settings.
        removals: How windows are removed; if none is given, as suits the inputs, and colours are
            confirmed by noise as well.
        run: Runs the model on changed images, if there is a faster way than the model itself.
        dtype: What `run` computes in.
        with_outputs: Whether the model itself is run on the images without red and blue pixels and
            on the control; otherwise `outputs_without_positive` and its like have no classes.
        on_step: Called `removal.PROGRESS_STEPS` times.
    """
    inputs, runner = question.inputs, question.runner
    windows = windows_over(inputs, test.window, test.stride)
    details = details_for(test, windows)
    checks = () if removals else default_checks(inputs)
    changed = ChangedImages(
        question,
        removals or default_removals(inputs),
        checks,
        run=run or runner.outputs,
        dtype=dtype,
        on_step=on_step,
    )
    changed.expect(_count_passes(changed, len(windows), len(details), test.contexts))
    worth, cost = smooth_edges(*window_worth(changed, windows, contexts=test.contexts), windows)
    red, blue = propose(worth, cost, streams, details, windows)
    detail, without_positive = choose(changed, torch.where((cost > 0)[:, None], 0, red))
    red = red[torch.arange(len(detail), device=detail.device), detail]
    without_negative, loss, gain = remove_colours(changed, red_area=worth > 0, blue=blue)
    least = MARGIN * (changed.score - changed.empty_score[:, 0]).abs()
    is_true = (without_negative > least[:, None]).all(1)
    blue = torch.where(_expand(is_true, blue), blue, 0)
    red = torch.where(blue > 0, 0, red)
    gain = torch.where(is_true, gain, 0)
    area = float(windows.masks[0].sum())
    signed = scaled_to(red, loss, area) - scaled_to(blue, gain, area)
    masks = strongest(red), strongest(blue), moved_elsewhere(strongest(red))
    outputs = [
        runner.outputs(changed.remove(0, mask)) if with_outputs else inputs.new_empty(len(red), 0)
        for mask in masks
    ]
    return Tested(
        attribution=over_channels(signed, streams, inputs),
        worth_for=loss,
        worth_against=gain,
        change_without_positive=without_positive - changed.score[:, None],
        change_without_negative=torch.where(is_true[:, None], without_negative, 0),
        outputs=question.outputs,
        outputs_without_positive=outputs[0],
        outputs_without_negative=outputs[1],
        outputs_without_control=outputs[2],
        detail=detail,
        removals=changed.names,
    )


def propose(
    worth: Tensor,
    cost: Tensor,
    streams: tuple[Tensor, Tensor],
    details: tuple[Detail, ...],
    windows: Windows,
) -> tuple[Tensor, Tensor]:
    """Return red attributions with each detail, (rows, details, *size), and blue ones."""
    positive, negative = _pixels(streams[0]), _pixels(-streams[1])
    red = torch.stack([spread(positive, detail, windows, worth) for detail in details], 1)
    blue_detail = DETAILS[-1] if windows.are_pixels else BLUE_DETAIL
    blue = spread(negative + FAINT * _mean(positive), blue_detail, windows, cost)
    return red + tie_break(red, worth), blue


def remove_colours(
    changed: ChangedImages, *, red_area: Tensor, blue: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Remove the strongest blue pixels, all red ones, and all blue ones.

    Returns:
        How the score changes without the strongest blue pixels, (rows, removals); what it loses
        without red and what it gains without blue, (rows,), means over the tested removals.
    """
    every, tested = range(len(changed.names)), changed.tested
    found = changed.scores(
        [(k, strongest(blue)) for k in every]
        + [(k, red_area) for k in tested]
        + [(k, blue > 0) for k in tested]
    )
    change, red, all_blue = (found - changed.score[:, None]).split(
        [len(every), len(tested), len(tested)], 1
    )
    return change, -red.mean(1), all_blue.mean(1)


def smooth_edges(worth: Tensor, cost: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Smooth worth and cost, so that the edges of windows do not show."""
    sigmas = [EDGE_SMOOTHING * side for side in windows.side]
    worth, cost = gaussian(worth, sigmas), gaussian(cost, sigmas)
    return worth, torch.where(worth < 0, cost, 0)


def details_for(test: WindowTest, windows: Windows) -> tuple[Detail, ...]:
    """Return the candidates: one if the floor is given, or if windows have a single pixel."""
    if windows.are_pixels:
        return DETAILS[-1:]
    if test.floor is not None:
        return (Detail("floor", test.floor),)
    return DETAILS


def spread(stream: Tensor, detail: Detail, windows: Windows, worth: Tensor) -> Tensor:
    """Spread the worth of places over their pixels as a stream does, (rows, *size)."""
    worth = worth.clamp(min=0)
    if detail.floor == 1:
        return worth
    tiny = torch.finfo(stream.dtype).tiny
    smooth = gaussian(stream, [detail.smoothing * side for side in windows.side])
    mean = _mean(smooth)
    if detail.power == 1:
        mean = (box_mean(smooth, windows.side).clamp(min=0) * mean).sqrt()
    relative = smooth / mean.clamp(min=tiny)
    if detail.only_lifts:
        relative = relative.clamp(min=1)
    else:
        relative = detail.floor + (1 - detail.floor) * relative
    average = _mean(worth).clamp(min=tiny)
    spread_out = average * (worth / average) ** detail.power * relative
    largest = worth.flatten(1).amax(1).clamp(min=tiny)
    shown = (worth / (FADING * _expand(largest, worth))).clamp(max=1)
    return shown * spread_out + (1 - shown) * worth


def tie_break(red: Tensor, worth: Tensor) -> Tensor:
    """Return tiny attributions for places that have no colour, so that pixels have an order.

    The windows there have a negative worth, but not every removal agrees. They get a ten-thousandth
    of the largest attribution or less, the less the more negative they are.
    """
    dims = tuple(range(1, worth.dim()))
    largest = red.amax(tuple(range(2, red.dim())), keepdim=True)
    low = worth.clamp(max=0)
    depth = -low.amin(dims, keepdim=True)
    order = 1 + low / depth.clamp(min=torch.finfo(worth.dtype).tiny)
    return TIE_BREAK * order[:, None] * largest


def choose(changed: ChangedImages, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Choose one of each row's candidates, (rows, candidates, *size).

    Returns:
        The index of each row's candidate, and the row's score without the strongest tenth of that
        candidate's pixels, (rows, removals).
    """
    every, tested = range(len(changed.names)), changed.tested
    masks = [strongest(candidate) for candidate in candidates.unbind(1)]
    found = changed.scores(
        [(k, ~mask) for mask in masks for k in tested]
        + [(k, mask) for mask in masks for k in every]
    )
    alone, without = found.split([len(masks) * len(tested), len(masks) * len(every)], 1)
    alone = alone.unflatten(1, (len(masks), len(tested)))
    without = without.unflatten(1, (len(masks), len(every)))
    span = (changed.score[:, None] - changed.empty_score).abs().clamp(min=1e-3)
    restored = ((alone - changed.empty_score[:, None]) / span[:, None]).clamp(-1, 1)
    first, others = restored[..., 0], restored[..., 1:]
    if len(tested) > 1:
        first = FIRST_REMOVAL * first + (1 - FIRST_REMOVAL) * others.mean(2)
    falls = (without < changed.score[:, None, None]).all(2)
    chosen = (first + 2 * falls).argmax(1)
    return chosen, without[torch.arange(len(chosen), device=chosen.device), chosen]


def strongest(attribution: Tensor, share: float = SHARE) -> Tensor:
    """Return a mask of the strongest `share` of pixels, (rows, *size), fewer if fewer are above 0.

    Equal pixels are taken from top to bottom, then from left to right.
    """
    flat = attribution.flatten(1)
    count = max(1, round(share * flat.shape[1]))
    order = flat.argsort(dim=1, descending=True, stable=True)[:, :count]
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, order, True)
    return (mask & (flat > 0)).view_as(attribution)


def moved_elsewhere(mask: Tensor) -> Tensor:
    """Return masks, (rows, *size), of the same pattern moved by half the image.

    Pixels at random would be no fair control for a map that marks a region: scattered all over the
    image they act as noise.
    """
    dims = tuple(range(1, mask.dim()))
    return mask.roll([mask.shape[dim] // 2 for dim in dims], dims)


def scaled_to(attribution: Tensor, total: Tensor, area: float) -> Tensor:
    """Scale attributions of one sign so that they add up to `total`, (rows,).

    If removing these pixels did not change the score the way they should, they keep the scale of
    the windows: each window's mean worth is spread over its `area`.
    """
    found = attribution.flatten(1).sum(1)
    scale = torch.where((total > 0) & (found > 0), total / found.clamp(min=1e-30), 1 / area)
    return attribution * _expand(scale, attribution)


def over_channels(pixels: Tensor, streams: tuple[Tensor, Tensor], inputs: Tensor) -> Tensor:
    """Spread attributions of pixels over their channels as the streams do, shaped like inputs."""
    if inputs.dim() == 2:
        return pixels
    result = torch.zeros_like(inputs)
    for part, stream in ((pixels.clamp(min=0), streams[0]), (pixels.clamp(max=0), -streams[1])):
        own = stream.clamp(min=0)
        total = own.sum(1, keepdim=True)
        share = torch.where(total > 0, own / total.clamp(min=1e-30), 1 / inputs.shape[1])
        result += part[:, None] * share
    return result


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


def _along_each(values: Tensor, sizes: Any, function: Callable[[Tensor, Any], Tensor]) -> Tensor:
    """Apply a function of lines, (lines, 1, length), along each dimension after the first."""
    for dim, size in enumerate(sizes, 1):
        lines = values.movedim(dim, -1)
        result = function(lines.reshape(-1, 1, lines.shape[-1]), size)
        values = result.view(lines.shape).movedim(-1, dim)
    return values


def _pixels(stream: Tensor) -> Tensor:
    """Sum a stream over channels, and keep what is above zero."""
    return (stream.sum(1) if stream.dim() > 2 else stream).clamp(min=0)


def _mean(values: Tensor) -> Tensor:
    """Return the mean of each row, to be broadcast over its pixels."""
    return _expand(values.flatten(1).mean(1), values)


def _expand(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (like.dim() - 1))


def _count_passes(changed: ChangedImages, windows: int, details: int, contexts: int) -> int:
    """Return how many images the model will be run on."""
    rows, removals, all_removals = len(changed.inputs), len(changed.tested), len(changed.names)
    of_windows = windows * (removals + contexts - 1)
    of_rows = details * (removals + all_removals) + all_removals + 2 * removals
    return changed.images * of_windows + rows * of_rows
