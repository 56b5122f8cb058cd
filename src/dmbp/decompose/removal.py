"""Removes pixels from images, and runs the model on what is left.

A pixel is removed by replacing all its channels: by a blurred copy of the image, by its mean
colour, by zero, by a tensor, or by what a function returns. `ChangedImages` does that for the
images of a question, a batch at a time, and returns the score of every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dmbp.baseline import ReplaceFunction, baseline_for, noise, replaced_by
from dmbp.decompose.settings import OneRemoval
from dmbp.decompose.windows import WindowRun, Windows, pixel_size
from dmbp.engine import replace_pixels
from dmbp.errors import InputError
from dmbp.linear import Question
from dmbp.linear.targets import TargetRows

PASSES_FOR_EACH_ROW = 256
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


Change = tuple[int, Tensor, Tensor]
"""The index of a removal, rows, and a mask of the pixels to remove from each, (rows, *size)."""


WindowWorths = list[tuple[Tensor, Tensor]]
"""What each run says about windows, (rows, windows): their worth to the score and to its rivals."""


class ChangedImages:
    """The images of a question with pixels removed, and the scores they get.

    Args:
        question: The images and targets.
        removals: How pixels are removed when windows are tested.
        checks: Further ways to remove pixels, by which colours are confirmed.
        run: Runs the model on images, (images, …), and returns its outputs.
        dtype: What `run` computes in, so that images are converted once; None leaves them.
        never_waits: Whether windows with nothing to remove are run as well, so that the CPU need
            not wait for the GPU to say which these are.
    """

    def __init__(
        self,
        question: Question,
        removals: Sequence[OneRemoval],
        checks: Sequence[OneRemoval] = (),
        *,
        run: Callable[[Tensor], Tensor],
        dtype: torch.dtype | None = None,
        never_waits: bool = False,
    ) -> None:
        self.inputs = question.inputs
        self.names = tuple(_name(removal) for removal in (*removals, *checks))
        self.tested = range(len(removals))
        self._removals = (*removals, *checks)
        self._run_model = run
        self._dtype = dtype
        self._never_waits = never_waits
        most = MOST_PASSES_TOGETHER.get(self.inputs.device.type, MOST_PASSES_ON_GPU)
        self.batch_size = question.batch_size
        self._together = min(most, PASSES_FOR_EACH_ROW * self.batch_size)
        self.progress = Progress()
        image = question.rows.image
        order = {k: position for position, k in enumerate(dict.fromkeys(image))}
        device = self.inputs.device
        self._row_of_image = torch.tensor([image.index(k) for k in order], device=device)
        self._image_of_row = torch.tensor([order[k] for k in image], device=device)
        self._all_rows = torch.arange(len(image), device=device)
        outputs = question.outputs
        self._rows = question.rows.among(outputs.shape[1])
        weights = score_weights(self._rows, outputs.dtype)
        self._weights = None if weights is None else weights.to(device)
        self._has_rivals = len(self._rows.shape) == 1 and has_rivals(weights)
        self.look()

    def look(self) -> None:
        """Compute what depends on the images' pixels: what replaces them, and the first scores."""
        self._exact = _Images(self.inputs, [self._background(k) for k in self._removals])
        self._images = self._exact if self._dtype is None else self._exact.to(self._dtype)
        count, size = len(self.inputs), pixel_size(self.inputs)
        nothing = torch.zeros(count, *size, dtype=torch.bool, device=self.inputs.device)
        changes = [(0, self._all_rows, nothing)]
        changes += [(k, self._all_rows, ~nothing) for k in self.tested]
        self.outputs, *self._empty_outputs = self._outputs(changes).split(count)
        self._rivals = None
        if self._has_rivals:
            assert self._weights is not None
            self._rivals = rival_weights(self.outputs, self._weights)
        self.score = self.scores_of(self.outputs, self._all_rows)
        self.empty_score = torch.stack(
            [self.scores_of(k, self._all_rows) for k in self._empty_outputs], 1
        )

    def replace(self, question: Question) -> bool:
        """Take the images and targets of another question of the same form; `look` comes next.

        It has as many rows, whose scores are weighted sums of the outputs as well.

        Returns:
            Whether these can be taken: it must have rivals as well, or none.
        """
        assert self._weights is not None
        weights = score_weights(question.rows.among(self._rows.classes), self._weights.dtype)
        has_classes = len(self._rows.shape) == 1
        if weights is None or self._has_rivals != (has_classes and has_rivals(weights)):
            return False
        self.inputs.copy_(question.inputs)
        self._weights.copy_(weights, non_blocking=True)
        return True

    @property
    def images(self) -> int:
        """How many different images the rows have."""
        return len(self._row_of_image)

    def remove(self, removal: int, mask: Tensor) -> Tensor:
        """Return every row's image, as the model takes it, without the pixels in its mask."""
        return self._exact.remove(removal, self._all_rows, mask)

    def scores(self, changes: Sequence[tuple[int, Tensor]], rows: Tensor | None = None) -> Tensor:
        """Return each row's score after each change, (rows, changes).

        Args:
            changes: The index of a removal, and a mask of what it removes from each row.
            rows: The rows that the masks belong to; None takes all.
        """
        rows = self._all_rows if rows is None else rows
        outputs = self._outputs((removal, rows, mask) for removal, mask in changes)
        scores = self.scores_of(outputs, rows.repeat(len(changes)))
        return scores.view(len(changes), len(rows)).T

    def without(self, mask: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return each row's score without the pixels in its mask, (rows, removals)."""
        return self.scores([(removal, mask) for removal in range(len(self.names))], rows)

    def window_worth(self, runs: Sequence[WindowRun]) -> WindowWorths:
        """Return what each run says about each window, to the score and to its rivals.

        Windows with nothing to remove are not run.

        Returns:
            For each run two tensors (rows, windows): what the score loses without the window, or
            gains with the window alone, and the same for the rivals.
        """
        jobs = [self._windows_to_run(run) for run in runs]
        possible = sum(self.images * len(k.windows) for k in runs)
        self.progress.add(possible - sum(map(len, jobs)))

        def changes() -> Iterator[Change]:
            for run, job in zip(runs, jobs, strict=True):
                for part in job.split(self._together):
                    mask = run.windows.masks(part % len(run.windows))
                    image = self._row_of_image[part // len(run.windows)]
                    yield run.removal, image, ~mask if run.is_alone else mask

        outputs = self._outputs(changes()).split([len(job) for job in jobs])
        return [self._changes_by_window(*k) for k in zip(runs, jobs, outputs, strict=True)]

    def _windows_to_run(self, run: WindowRun) -> Tensor:
        """Return which windows of which images are run, counted image by image."""
        if self._never_waits:
            return torch.arange(self.images * len(run.windows), device=self.inputs.device)
        return self._changing(run.removal, run.windows).flatten().nonzero()[:, 0]

    def _changes_by_window(
        self, run: WindowRun, job: Tensor, outputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return how the scores of all rows and of their rivals change by each window of a run."""
        count = len(run.windows)
        position, row = self._rows_of(job // count)
        before = (self._empty_outputs[run.removal] if run.is_alone else self.outputs)[row]
        changing = self._changing(run.removal, run.windows) if self._never_waits else None

        def change(read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
            loss = read(before, row) - read(outputs[position], row)
            by_window = loss.new_zeros(len(self.inputs), count)
            by_window[row, (job % count)[position]] = -loss if run.is_alone else loss
            return by_window if changing is None else torch.where(changing, by_window, 0)

        return change(self.scores_of), change(self._rival_scores)

    def _rows_of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of each of these images, and for each row the image's position."""
        if self.images == len(self.inputs):
            return torch.arange(len(images), device=images.device), images
        position, row = (images[:, None] == self._image_of_row).nonzero(as_tuple=True)
        return position, row

    def _outputs(self, changes: Iterable[Change]) -> Tensor:
        """Return the model's outputs for all rows of all changes, in order."""
        outputs: list[Tensor] = []
        waiting: list[Tensor] = []

        def run() -> None:
            images = torch.cat(waiting)
            waiting.clear()
            outputs.append(self._run_model(images))
            self.progress.add(len(images))

        for removal, rows, mask in changes:
            for row, own in zip(
                rows.split(self._together), mask.split(self._together), strict=True
            ):
                if sum(map(len, waiting)) + len(row) > self._together:
                    run()
                waiting.append(self._images.remove(removal, row, own))
        if waiting:
            run()
        return torch.cat(outputs) if outputs else self.inputs.new_zeros(0, self._rows.classes)

    def scores_of(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of these rows, from outputs with an entry for each."""
        if self._weights is not None:
            return (outputs * self._weights[rows]).sum(1)
        return self._rows.pick(rows.tolist()).scores(outputs)

    def output_weights(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return how much each output of an image counts in its row's score, (images, classes).

        A target function counts outputs differently at each image, so the model is run on them.
        """
        if self._weights is not None:
            return self._weights[rows]
        return self._rows.pick(rows.tolist()).tangent(self._run_model(images))[0]

    def _rival_scores(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of these rows' rivals, 0 if they have none."""
        if self._rivals is None:
            return outputs.new_zeros(len(outputs))
        return (outputs * self._rivals[rows]).sum(1)

    def _background(self, removal: OneRemoval) -> Background:
        """Return what takes the place of removed pixels, or the function that computes it."""
        if callable(removal):
            return removal
        if isinstance(removal, str) and removal == "noise":
            return noise(self.inputs)
        try:
            return baseline_for(self.inputs, removal)
        except InputError as error:
            raise InputError(str(error).replace("reference", "removal")) from None

    def _changing(self, removal: int, windows: Windows) -> Tensor:
        """Return in which windows of which image removal changes anything, (images, windows)."""
        background = self._exact.backgrounds[removal]
        if not isinstance(background, Tensor):
            return torch.ones(
                self.images, len(windows), dtype=torch.bool, device=self.inputs.device
            )
        differs = (background != self.inputs)[self._row_of_image]
        differs = differs.any(1) if differs.dim() > 2 else differs
        return windows.sums(differs.float()) > 0


def score_weights(rows: TargetRows, dtype: torch.dtype) -> Tensor | None:
    """Return the weights of the classes in each row's score, (rows, classes), on the CPU.

    They are None if a score is a function of the outputs.
    """
    if not rows.is_linear:
        return None
    return rows.tangent(torch.empty(len(rows), rows.classes, dtype=dtype))[0]


def has_rivals(weights: Tensor | None) -> bool:
    """Return whether every row leaves a class without a weight; that class is its rival."""
    return weights is not None and not bool((weights != 0).all(1).any())


def rival_weights(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return how much each other class counts as a rival of each row's target, (rows, classes).

    Rivals are all classes that the target has no weight for, by their share of a softmax over them.
    The weights add up to 1 for each row.

    Args:
        outputs: The model's outputs for the whole images, (rows, classes).
        weights: The weights of the classes in each row's score; see `has_rivals`.
    """
    return outputs.masked_fill(weights != 0, -torch.inf).softmax(1)


Background = Tensor | ReplaceFunction


@dataclass(frozen=True)
class _Images:
    """Images, and what takes the place of their pixels by each removal."""

    inputs: Tensor
    backgrounds: list[Background]

    def to(self, dtype: torch.dtype) -> _Images:
        """Return the same in another dtype, with channels last as convolutions prefer."""

        def converted(images: Any) -> Any:
            if not isinstance(images, Tensor):
                return images
            order = torch.channels_last if images.dim() == 4 else torch.preserve_format
            return images.to(dtype, memory_format=order)

        return _Images(converted(self.inputs), [converted(k) for k in self.backgrounds])

    def remove(self, removal: int, rows: Tensor, mask: Tensor) -> Tensor:
        """Return the images of these rows with the pixels in `mask`, (rows, *size), removed."""
        background = self.backgrounds[removal]
        if isinstance(background, Tensor):
            return replace_pixels(self.inputs, background, rows, mask)
        inputs = self.inputs[rows]
        mask = mask[:, None] if inputs.dim() > 2 else mask
        return torch.where(mask, replaced_by(background, inputs, mask), inputs)


class Progress:
    """Calls a function `PROGRESS_STEPS` times while an expected number of images is run."""

    def __init__(self, on_step: Callable[[], None] | None = None, *, expected: int = 0) -> None:
        self.expected = expected
        self._on_step = on_step
        self._done = self._reported = 0

    def add(self, images: int) -> None:
        """Count images that have been run, or need not be."""
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
