"""Removes pixels from images, and runs the model on what is left.

A pixel is removed by replacing all its channels: by a blurred copy of the image, by its mean
colour, by zero, by a tensor, or by what a function returns. `ChangedImages` does that for the
images of a question, a batch at a time, and returns the score of every row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dmbp.baseline import baseline_for, noise
from dmbp.decompose.settings import OneRemoval
from dmbp.errors import InputError
from dmbp.linear import Question

PASSES_FOR_EACH_ROW = 64
MOST_PASSES_TOGETHER = {"cpu": 16}
MOST_PASSES_ON_GPU = 512
"""How many changed images the model is run on at once, for each row and at most."""

PROGRESS_STEPS = 10
"""How often the progress of all passes is reported."""


def default_removals(inputs: Tensor) -> tuple[OneRemoval, ...]:
    """Return how pixels are removed by default; a vector's entries have no surroundings."""
    return ("zero",) if inputs.dim() == 2 else ("blur", "mean")


def default_checks(inputs: Tensor) -> tuple[OneRemoval, ...]:
    """Return further removals that have to confirm a map's colours by default."""
    return () if inputs.dim() == 2 else ("noise",)


class ChangedImages:
    """The images of a question with pixels removed, and the scores they get.

    Args:
        question: The images and targets.
        removals: How pixels are removed when windows are tested.
        checks: Further ways to remove pixels, by which colours are confirmed.
        run: Runs the model on images, (images, …), and returns its outputs.
        on_step: Called `PROGRESS_STEPS` times while images are run, once `expect` has said how many
            there will be.
    """

    def __init__(
        self,
        question: Question,
        removals: Sequence[OneRemoval],
        checks: Sequence[OneRemoval] = (),
        *,
        run: Callable[[Tensor], Tensor],
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.inputs = question.inputs
        self._run_model = run
        device = self.inputs.device.type
        most = MOST_PASSES_TOGETHER.get(device, MOST_PASSES_ON_GPU)
        self._together = min(most, PASSES_FOR_EACH_ROW * question.batch_size)
        self._progress = _Progress(on_step)
        images = question.rows.image
        self._image_rows = torch.tensor(
            [images.index(image) for image in dict.fromkeys(images)], device=self.inputs.device
        )
        order = {image: k for k, image in enumerate(dict.fromkeys(images))}
        self._image_of_row = torch.tensor([order[k] for k in images], device=self.inputs.device)
        self.tested = range(len(removals))
        everyone = (*removals, *checks)
        self._backgrounds = [self._background(removal) for removal in everyone]
        self.names = tuple(_name(removal) for removal in everyone)
        outputs = self._run(self.inputs)
        self._rows = question.rows.among(outputs.shape[1])
        self._weights = self._rows.tangent(outputs)[0] if self._rows.is_linear else None
        self.score = self._scores(outputs, torch.arange(len(self.inputs), device=outputs.device))

    def expect(self, passes: int) -> None:
        """Prepare to report progress over this many images."""
        self._progress.expected = passes

    @property
    def images(self) -> int:
        """How many different images the rows have."""
        return len(self._image_rows)

    @cached_property
    def empty_score(self) -> Tensor:
        """The score of each row with all pixels removed, (rows, tested removals)."""
        everything = torch.ones_like(self.inputs[:, 0] if self.inputs.dim() > 2 else self.inputs)
        return self.without(everything.bool(), self.tested)

    def remove(self, removal: int, rows: Tensor, mask: Tensor) -> Tensor:
        """Return the images of these rows with the pixels in `mask`, (rows, *size), removed."""
        inputs, background = self.inputs[rows], self._backgrounds[removal]
        mask = mask[:, None] if inputs.dim() > 2 else mask
        if not isinstance(background, Tensor):
            return torch.where(mask, _replaced(background, inputs, mask), inputs)
        return torch.where(mask, background[rows], inputs)

    def without(self, mask: Tensor, removals: Sequence[int] | None = None) -> Tensor:
        """Return each row's score without the pixels in its mask, (rows, removals)."""
        rows = torch.arange(len(mask), device=mask.device)
        every = range(len(self.names)) if removals is None else removals
        return torch.stack([self._scores_of(k, rows, mask) for k in every], 1)

    def windows(self, removal: int, masks: Tensor, *, alone: bool) -> Tensor:
        """Return each row's score without each window, (rows, windows), or with it `alone`.

        Windows that hold nothing to remove are not run.
        """
        count = len(masks)
        jobs = self._differing(removal, masks).flatten().nonzero()[:, 0]
        nothing = self.empty_score[:, removal] if alone else self.score
        result = nothing[:, None].expand(-1, count).clone()
        for part in jobs.split(self._together):
            image, window = part // count, part % count
            mask = masks[window]
            changed = self.remove(removal, self._image_rows[image], ~mask if alone else mask)
            outputs = self._run(changed)
            position, row = (image[:, None] == self._image_of_row).nonzero(as_tuple=True)
            result[row, window[position]] = self._scores(outputs[position], row)
        self._progress.add(self.images * count - len(jobs))
        return result

    def _scores_of(self, removal: int, rows: Tensor, masks: Tensor) -> Tensor:
        scores: list[Tensor] = []
        for row, mask in zip(rows.split(self._together), masks.split(self._together), strict=True):
            scores.append(self._scores(self._run(self.remove(removal, row, mask)), row))
        return torch.cat(scores)

    def _run(self, images: Tensor) -> Tensor:
        outputs = [self._run_model(part) for part in images.split(self._together)]
        self._progress.add(len(images))
        return torch.cat(outputs)

    def _scores(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of these rows, from outputs with an entry for each."""
        if self._weights is not None:
            return (outputs * self._weights[rows]).sum(1)
        return self._rows.pick(rows.tolist()).scores(outputs)

    def _background(self, removal: OneRemoval) -> Any:
        """Return what takes the place of removed pixels, or the function that computes it."""
        if callable(removal):
            return removal
        if isinstance(removal, str) and removal == "noise":
            return noise(self.inputs)
        try:
            return baseline_for(self.inputs, removal)
        except InputError as error:
            raise InputError(str(error).replace("reference", "removal")) from None

    def _differing(self, removal: int, masks: Tensor) -> Tensor:
        """Return in which windows of which image removal changes anything, (images, windows)."""
        background = self._backgrounds[removal]
        if not isinstance(background, Tensor):
            return torch.ones(self.images, len(masks), dtype=torch.bool, device=masks.device)
        differs = (background != self.inputs)[self._image_rows]
        differs = differs.any(1) if differs.dim() > 2 else differs
        return differs.flatten(1).float() @ masks.flatten(1).float().T > 0


class _Progress:
    """Calls a function `PROGRESS_STEPS` times while an expected number of images is run."""

    def __init__(self, on_step: Callable[[], None] | None) -> None:
        self.expected = 0
        self._on_step = on_step
        self._done = self._reported = 0

    def add(self, images: int) -> None:
        if self._on_step is None or not self.expected:
            return
        self._done += images
        reached = min(PROGRESS_STEPS, PROGRESS_STEPS * self._done // self.expected)
        while self._reported < reached:
            self._reported += 1
            self._on_step()


def _name(removal: OneRemoval) -> str:
    if isinstance(removal, Tensor):
        return "tensor"
    if callable(removal):
        return str(getattr(removal, "__name__", "function"))
    return removal or "zero"


def _replaced(function: Callable[..., Any], inputs: Tensor, mask: Tensor) -> Tensor:
    try:
        images = function(inputs.clone(), mask)
    except Exception as error:
        raise InputError(f"the removal function fails: {error}") from error
    if not isinstance(images, Tensor) or images.shape != inputs.shape:
        what = (
            f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        )
        raise InputError(
            "a removal function takes images and a mask, and returns images of the same shape, "
            f"{tuple(inputs.shape)}, not {what}"
        )
    if not torch.isfinite(images).all():
        raise InputError("the removal function returned NaN or infinity")
    return images.to(inputs)
