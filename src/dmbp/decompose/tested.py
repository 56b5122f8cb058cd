"""Colours that the model itself has confirmed.

The two streams show to the pixel where evidence may be, but not how much it counts, and the sign of
the negative stream is often wrong if a photo shows one object. So the model is asked:

1. **Worth.** Each window is removed from the image, and put alone into an image where all else is
   removed (`windows`). A place is red if its windows are worth something on average, at least a
   seventh of the most valuable place (`places`), and blue if every test says that they cost
   something. Pixels that are neither have tiny attributions, which only order them: those that the
   other classes need most come last.
2. **Detail.** Inside a window, worth is spread over pixels by the mean of the positive stream and
   of gradients in partly removed images (`mixtures`), sharply or softly: there are four candidates
   (`details`). The strongest tenth and fifth of each candidate's pixels are put alone into the
   removed image. The candidate that restores most of the score is taken, if the score falls without
   its strongest tenth, whichever way that is removed; otherwise the next one.
3. **Confirmation.** The strongest tenth of the blue pixels is removed: unless the score rises
   whichever way they are removed, the map has no blue.

By default windows are removed by a blur and by the image's mean colour, and red and blue must be
confirmed by noise around the mean as well. Last, all red pixels are removed, and all blue ones: red
attributions add up to what the score loses, `worth_for`, and blue ones to what it gains,
`worth_against`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from dmbp.decompose.details import (
    BLUE_DETAIL,
    DETAILS,
    Detail,
    expand_rows,
    mean_of_rows,
    spread,
)
from dmbp.decompose.mixtures import (
    INTERPOLATION,
    draw_shares,
    mean_stream,
    mixture_stream,
)
from dmbp.decompose.places import (
    Places,
    order_without_colour,
    place_worth,
    sharpen_places,
    significance,
    smooth_places,
    window_runs,
    windows_near_regions,
)
from dmbp.decompose.removal import ChangedImages, Progress, default_checks, default_removals
from dmbp.decompose.settings import OneRemoval, WindowTest
from dmbp.decompose.windows import Shares, WindowRun, Windows, pixel_size
from dmbp.engine import input_gradients
from dmbp.linear import Question

SHARE = 0.1
"""The share of pixels that are removed, or shown alone, to confirm a colour."""

MARGIN = 0.1
"""Without its blue pixels, a score must rise by this share of what the whole image is worth."""

TIE_BREAK = 1e-6
"""Pixels without a colour have attributions up to this share of the largest, so that they have an
order."""

NEGLIGIBLE = 1e-5
"""Attributions below this share of a map's largest are no claim, and do not count as a colour."""

FAINT = 0.05
"""Where the negative stream is fainter than this share of the positive one, it has no detail."""

Streams = tuple[Tensor, Tensor]
"""The attributions of the positive and of the negative stream, shaped like the inputs."""

TRIED_WINDOWS = 8
MOST_ROUGH = 0.1
"""Windows that are run in fewer bits are run again, unless so many that are worth most keep their
worth up to this share of it. On photographs the worth of places then correlates by .999."""

CHOICE_SHARES = (SHARE, 0.2)
"""The shares of pixels that are shown alone to choose a detail."""

SHOWN = 3
"""On how many changed images of a row the model itself is run."""

FIRST_REMOVAL = 0.6
"""How much the first removal counts when the best detail is chosen; the others share the rest."""


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


def join_rows(parts: Sequence[Tested], rows: Sequence[Sequence[int]]) -> Tested:
    """Return what was found about several groups of rows, in the order of the rows.

    Args:
        parts: What was found about each group, with the same removals.
        rows: The indices of each group's rows.
    """
    if len(parts) == 1:
        return parts[0]
    order = torch.tensor([row for group in rows for row in group]).argsort()
    names = [k.name for k in fields(Tested) if isinstance(getattr(parts[0], k.name), Tensor)]
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **{k: v[order.to(v.device)] for k, v in joined.items()})


@dataclass(frozen=True)
class Run:
    """Ways to run the model on images, (images, …); each returns outputs, (images, classes).

    Attributes:
        model: Runs the model itself.
        gradients: Returns the gradient of a weighted sum of outputs, from images and weights, or
            None if the model passes no gradient to its inputs.
        outputs: Runs it faster; None takes `model`.
        dtype: What `outputs` computes in, so that images are converted once; None leaves them.
        rough_outputs: Runs it faster still, in fewer bits, for windows; None takes `outputs`.
        rough_dtype: What `rough_outputs` computes in.
    """

    model: Callable[[Tensor], Tensor]
    gradients: Callable[[Tensor, Tensor], Tensor | None]
    outputs: Callable[[Tensor], Tensor] | None = None
    dtype: torch.dtype | None = None
    rough_outputs: Callable[[Tensor], Tensor] | None = None
    rough_dtype: torch.dtype | None = None


@torch.no_grad()
def confirm_colours(
    question: Question,
    streams: Streams,
    test: WindowTest,
    *,
    window: Shares | None = None,
    removals: tuple[OneRemoval, ...] = (),
    run: Run | None = None,
    with_outputs: bool = True,
    on_step: Callable[[], None] | None = None,
) -> Tested:
    """Ask the model what the places of each row's image are worth, and confirm the answer.

    Args:
        question: The images and targets.
        streams: The attributions of the positive and of the negative stream, shaped like the
            inputs.
        test: The settings.
        window: The side of windows, if the settings leave it open.
        removals: How windows are removed; if none is given, as suits the inputs, and colours are
            confirmed by noise as well.
        run: Runs the model on changed images, if there is a faster way than the model itself.
        with_outputs: Whether the model itself is run on the images without red and blue pixels and
            on the control; otherwise `outputs_without_positive` and its like have no classes.
        on_step: Called `removal.PROGRESS_STEPS` times.
    """
    runner = question.runner
    run = run or Run(runner.outputs, partial(input_gradients, runner.run))
    used, checks = removals_and_checks(question.inputs, removals)
    changed = ChangedImages(question, used, checks, run=run.outputs or run.model, dtype=run.dtype)
    rough = changed
    if run.rough_outputs is not None:
        rough = ChangedImages(question, used, run=run.rough_outputs, dtype=run.rough_dtype)
    plan = plan_test(question, changed, test, window)
    changed.progress = rough.progress = Progress(on_step, expected=plan.passes)
    evidence = find_evidence(changed, plan, run.gradients, rough=rough)
    candidates = propose(changed, plan, evidence, streams)
    try_others(changed, candidates)
    finished = finish(changed, plan, evidence, candidates, streams)
    return tested(question, changed, candidates, finished, run.model if with_outputs else None)


def removals_and_checks(
    inputs: Tensor, removals: tuple[OneRemoval, ...]
) -> tuple[tuple[OneRemoval, ...], tuple[OneRemoval, ...]]:
    """Return how windows are removed, and how else colours are confirmed."""
    if removals:
        return removals, ()
    return default_removals(inputs), default_checks(inputs)


@dataclass(frozen=True)
class TestPlan:
    """What is run for a question; none of it depends on the pixels.

    Attributes:
        runs: How windows are tested.
        details: The candidates for the map's detail.
        near: The smaller windows of rows whose targets look at a small region.
        contexts: As in `WindowTest`.
        shares: How mixtures are made, (mixtures, *size); None if there are none.
        passes: How many images the model will be run on, if every first choice is confirmed.
    """

    runs: list[WindowRun]
    details: tuple[Detail, ...]
    near: Mapping[int, Windows]
    contexts: int
    shares: Tensor | None
    passes: int

    @property
    def windows(self) -> Windows:
        """The windows whose worth decides about colours."""
        return self.runs[-1].windows


def plan_test(
    question: Question, changed: ChangedImages, test: WindowTest, window: Shares | None
) -> TestPlan:
    """Plan the test of a question whose images are `changed`."""
    inputs = changed.inputs
    side = test.window or window
    runs = window_runs(changed, window=side, stride=test.stride, contexts=test.contexts)
    windows = runs[-1].windows
    details = details_for(test, windows)
    near = windows_near_regions(question.rows.labels, windows, None if test.window else side)
    passes = _count_passes(changed, runs, len(details))
    passes += sum(map(len, near.values())) * (len(changed.tested) + test.contexts - 1)
    shares, size = None, pixel_size(inputs)
    has_detail = any(detail.floor < 1 for detail in details)
    if test.mixtures and has_detail and len(size) in INTERPOLATION:
        shares = draw_shares(size, test.mixtures, question.generator()).to(inputs)
    return TestPlan(runs, details, near, test.contexts, shares, passes)


@dataclass(frozen=True)
class Evidence:
    """What the model says about an image before there is a map.

    Attributes:
        places: What places are worth.
        mixtures: Where gradients in partly removed images say that evidence is, (rows, *size);
            None if they are not asked.
    """

    places: Places
    mixtures: Tensor | None

    @property
    def red_area(self) -> Tensor:
        """The places that are worth enough to be red, (rows, *size)."""
        return self.places.worth > significance(self.places)


def find_evidence(
    changed: ChangedImages,
    plan: TestPlan,
    gradients: Callable[[Tensor, Tensor], Tensor | None],
    *,
    rough: ChangedImages,
) -> Evidence:
    """Test windows, and take gradients in mixtures; this needs no streams.

    Windows are run by `rough`, and again by `changed` in rows where that is too far off.
    """
    worths = rough.window_worth(plan.runs)
    if rough is not changed:
        # Each row for itself: a map must not depend on what else is in the batch.
        close = is_close(worths[0][0], plan.runs[0], changed)[:, None]
        if not close.all():
            exact = changed.window_worth(plan.runs)
            worths = [
                (torch.where(close, few[0], many[0]), torch.where(close, few[1], many[1]))
                for few, many in zip(worths, exact, strict=True)
            ]
    places = smooth_places(place_worth(plan.runs, worths))
    places = sharpen_places(places, plan.near, changed, contexts=plan.contexts)
    mixtures = None
    if plan.shares is not None:
        side = plan.windows.side
        mixtures = mixture_stream(changed, gradients, shares=plan.shares, side=side)
    return Evidence(places, mixtures)


def is_close(worth: Tensor, run: WindowRun, exact: ChangedImages) -> Tensor:
    """Return in which rows the windows worth most are worth as much in more bits, (rows,).

    Args:
        worth: What each window is worth in fewer bits, (rows, windows).
        run: The windows, and how they are removed.
        exact: Runs the model in more bits.
    """
    most = worth.abs().topk(min(TRIED_WINDOWS, worth.shape[1]), dim=1).indices
    masks = run.windows.masks(most)
    without = exact.scores([(run.removal, mask) for mask in masks.unbind(1)])
    expected = exact.score[:, None] - without
    error, size = ((k * k).sum(1).sqrt() for k in (worth.gather(1, most) - expected, expected))
    return error <= MOST_ROUGH * size


@dataclass(frozen=True)
class Candidates:
    """Maps that the model chooses from, and its choice.

    Attributes:
        red: Red attributions with each detail, (rows, details, *size).
        strongest_red: The strongest tenth of each, (rows, details, *size).
        blue: Blue attributions, not confirmed yet, (rows, *size).
        rank: The details, from the one that restores most of the score down, (rows, details).
        chosen: The chosen detail, (rows,).
        without: The score without the strongest tenth of the chosen candidate's red pixels, by each
            removal, (rows, removals).
    """

    red: Tensor
    strongest_red: Tensor
    blue: Tensor
    rank: Tensor
    chosen: Tensor
    without: Tensor

    def of_chosen(self, values: Tensor) -> Tensor:
        """Return what `values`, (rows, details, …), say about the chosen candidates."""
        return values[torch.arange(len(values), device=values.device), self.chosen]


def propose(
    changed: ChangedImages, plan: TestPlan, evidence: Evidence, streams: Streams
) -> Candidates:
    """Spread the worth of places over pixels with each detail, and choose the best.

    That is the one whose strongest pixels alone restore most of the score.
    """
    positive, negative = _pixels(streams[0]), _pixels(-streams[1])
    places, windows = evidence.places, plan.windows
    worth = torch.where(evidence.red_area, places.worth, 0)
    inside = mean_stream(positive, evidence.mixtures)
    red = torch.stack([spread(inside, detail, windows, worth) for detail in plan.details], 1)
    blue_detail = DETAILS[-1] if windows.are_pixels else BLUE_DETAIL
    against = negative + FAINT * mean_of_rows(positive)
    return first_choice(changed, red, spread(against, blue_detail, windows, places.cost))


def first_choice(changed: ChangedImages, red: Tensor, blue: Tensor) -> Candidates:
    """Return candidates of which the one that restores most of the score is chosen."""
    masks = [k.unflatten(0, red.shape[:2]) for k in strongest_of(red.flatten(0, 1), CHOICE_SHARES)]
    rank = restored_scores(changed, masks).argsort(dim=1, descending=True, stable=True)
    found = Candidates(red, masks[0], blue, rank, rank[:, 0].clone(), rank)
    return replace(found, without=changed.without(found.of_chosen(found.strongest_red)))


def is_open(changed: ChangedImages, candidates: Candidates) -> Tensor:
    """Return in which rows the score does not fall without the red pixels, (rows,)."""
    return ~(candidates.without < changed.score[:, None]).all(1)


def try_others(changed: ChangedImages, candidates: Candidates) -> None:
    """Where the score does not fall without the red pixels, choose the next best candidate.

    It must fall whichever way they are removed. If it does for none, the first choice stays.
    """
    for candidate in candidates.rank.T[1:]:
        row = is_open(changed, candidates).nonzero()[:, 0]
        if not len(row):
            break
        found = changed.without(candidates.strongest_red[row, candidate[row]], row)
        row, found = (k[(found < changed.score[row, None]).all(1)] for k in (row, found))
        candidates.chosen[row], candidates.without[row] = candidate[row], found


@dataclass(frozen=True)
class Finished:
    """The map, and what it is worth; see `Tested`.

    Attributes:
        attribution: The signed attributions.
        worth_for: What the score loses without red pixels.
        worth_against: What it gains without blue ones.
        without_negative: How it changes without the strongest tenth of blue pixels.
        masks: The strongest red pixels, the strongest blue ones, and the control, (rows, *size).
    """

    attribution: Tensor
    worth_for: Tensor
    worth_against: Tensor
    without_negative: Tensor
    masks: tuple[Tensor, ...]


def finish(
    changed: ChangedImages,
    plan: TestPlan,
    evidence: Evidence,
    candidates: Candidates,
    streams: Streams,
) -> Finished:
    """Confirm the blue pixels, and scale both colours to what the score loses and gains."""
    red, blue = candidates.of_chosen(candidates.red), candidates.blue
    strongest_red = candidates.of_chosen(candidates.strongest_red)
    strongest_blue, red_area = strongest(blue), evidence.red_area
    without_negative, loss, gain = remove_colours(
        changed, red_area=red_area, blue=blue, strongest_blue=strongest_blue
    )
    least = MARGIN * (changed.score - changed.empty_score[:, 0]).abs()
    is_true = (without_negative > least[:, None]).all(1)
    blue = torch.where(expand_rows(is_true, blue), blue, 0)
    strongest_blue = strongest_blue & expand_rows(is_true, blue)
    gain = torch.where(is_true, gain, 0)
    area = plan.windows.area
    largest = expand_rows(red.flatten(1).amax(1), red)
    order = order_without_colour(evidence.places, red_area)
    ordered = red + torch.where(blue > 0, 0, TIE_BREAK * largest * order)
    signed = scaled_to(ordered, loss, area) - scaled_to(blue, gain, area)
    return Finished(
        attribution=over_channels(signed, streams, changed.inputs),
        worth_for=loss,
        worth_against=gain,
        without_negative=torch.where(is_true[:, None], without_negative, 0),
        masks=(strongest_red, strongest_blue, moved_elsewhere(strongest_red)),
    )


def tested(
    question: Question,
    changed: ChangedImages,
    candidates: Candidates,
    finished: Finished,
    run_model: Callable[[Tensor], Tensor] | None,
) -> Tested:
    """Return what was found; `run_model` runs the model itself without the map's colours."""
    shape = question.rows.among(question.outputs.shape[1]).shape
    outputs = [changed.inputs.new_empty(len(changed.inputs), 0)] * len(finished.masks)
    if run_model is not None:
        shown = torch.cat([changed.remove(0, mask) for mask in finished.masks])
        found = run_model(shown).unflatten(1, shape)
        outputs = [k.clone() for k in found.split(len(changed.inputs))]
    return Tested(
        attribution=finished.attribution,
        worth_for=finished.worth_for,
        worth_against=finished.worth_against,
        change_without_positive=candidates.without - changed.score[:, None],
        change_without_negative=finished.without_negative,
        outputs=question.outputs.unflatten(1, shape),
        outputs_without_positive=outputs[0],
        outputs_without_negative=outputs[1],
        outputs_without_control=outputs[2],
        detail=candidates.chosen,
        removals=changed.names,
    )


def remove_colours(
    changed: ChangedImages, *, red_area: Tensor, blue: Tensor, strongest_blue: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Remove the strongest blue pixels, all red ones, and all blue ones.

    Returns:
        How the score changes without the strongest blue pixels, (rows, removals); what it loses
        without red and what it gains without blue, (rows,), means over the tested removals.
    """
    every, tested = range(len(changed.names)), changed.tested
    found = changed.scores(
        [(k, strongest_blue) for k in every]
        + [(k, red_area) for k in tested]
        + [(k, blue > 0) for k in tested]
    )
    change, red, all_blue = (found - changed.score[:, None]).split(
        [len(every), len(tested), len(tested)], 1
    )
    return change, -red.mean(1), all_blue.mean(1)


def details_for(test: WindowTest, windows: Windows) -> tuple[Detail, ...]:
    """Return the candidates: one if the floor is given, or if windows have a single pixel."""
    if windows.are_pixels:
        return DETAILS[-1:]
    if test.floor is not None:
        return (Detail("floor", test.floor),)
    return DETAILS


def restored_scores(changed: ChangedImages, strongest: Sequence[Tensor]) -> Tensor:
    """Return what share of the score the strongest pixels alone restore, (rows, candidates).

    Args:
        changed: Runs the model on changed images.
        strongest: Masks of each candidate's strongest pixels, (rows, candidates, *size), one for
            each of `CHOICE_SHARES`.
    """
    rows, candidates = strongest[0].shape[:2]
    if candidates == 1:
        return changed.score.new_ones(rows, 1)
    tested = changed.tested
    masks = [of_share[:, k] for k in range(candidates) for of_share in strongest]
    found = changed.scores([(k, ~mask) for mask in masks for k in tested])
    alone = found.unflatten(1, (-1, len(CHOICE_SHARES), len(tested)))
    span = (changed.score[:, None] - changed.empty_score).abs().clamp(min=1e-3)
    restored = ((alone - changed.empty_score[:, None, None]) / span[:, None, None]).clamp(-1, 1)
    restored = restored.mean(2)
    if len(tested) == 1:
        return restored[..., 0]
    return FIRST_REMOVAL * restored[..., 0] + (1 - FIRST_REMOVAL) * restored[..., 1:].mean(2)


def strongest(attribution: Tensor, share: float = SHARE) -> Tensor:
    """Return a mask of the strongest `share` of pixels, (rows, *size).

    Only pixels above `NEGLIGIBLE` count, so it may have fewer. Equal pixels are taken from top to
    bottom, then from left to right.
    """
    return strongest_of(attribution, [share])[0]


def strongest_of(attribution: Tensor, shares: Sequence[float]) -> list[Tensor]:
    """Return what `strongest` does, for each of several shares."""
    flat = attribution.flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    counts = flat > NEGLIGIBLE * flat.amax(1, keepdim=True).clamp(min=0)
    masks: list[Tensor] = []
    for share in shares:
        first = order[:, : max(1, round(share * flat.shape[1]))]
        mask = torch.zeros_like(counts).scatter_(1, first, True)
        masks.append((mask & counts).view_as(attribution))
    return masks


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
    return attribution * expand_rows(scale, attribution)


def over_channels(pixels: Tensor, streams: Streams, inputs: Tensor) -> Tensor:
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


def _pixels(stream: Tensor) -> Tensor:
    """Sum a stream over channels, and keep what is above zero."""
    return (stream.sum(1) if stream.dim() > 2 else stream).clamp(min=0)


def _count_passes(changed: ChangedImages, runs: list[WindowRun], details: int) -> int:
    """Return how many images the model will be run on, if every first choice is confirmed."""
    rows, removals, all_removals = len(changed.inputs), len(changed.tested), len(changed.names)
    of_windows = sum(len(k.windows) for k in runs)
    choices = details * len(CHOICE_SHARES) * removals if details > 1 else 0
    return changed.images * of_windows + rows * (choices + 2 * all_removals + 2 * removals)
