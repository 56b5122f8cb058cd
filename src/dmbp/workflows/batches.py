"""Explains several photos in batches.

`explain_together` takes photos of any sizes. Neighbours that the model sees at one size are
explained in one batch, which on a GPU takes a sixth of the time, and on a CPU a tenth less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from dmbp.attribution import DMBP
from dmbp.errors import DMBPError
from dmbp.models import Classifier
from dmbp.workflows.arrays import ArrayExplanation, ArrayInput, ArrayPrediction
from dmbp.workflows.explanation import Explanation, PhotoExplanation
from dmbp.workflows.prediction import InputPrediction, Prediction
from dmbp.workflows.sources import Photo


def explain_photo(
    photo: Photo | ArrayInput,
    classifier: Classifier,
    explainer: DMBP,
    on_iteration: Callable[[], None] | None = None,
) -> Explanation[InputPrediction]:
    """Explain one photo for its targets, or for what suits the model's outputs if it has none."""
    (explanation,) = explain_together([photo], classifier, explainer, on_iteration)
    return explanation


def explain_together(
    photos: Iterable[Photo | ArrayInput],
    classifier: Classifier,
    explainer: DMBP,
    on_iteration: Callable[[], None] | None = None,
    *,
    most: int | None = None,
) -> Iterator[Explanation[InputPrediction]]:
    """Yield the explanation of each photo; neighbours of one size are explained in one batch.

    Batches are bounded in what they hold: `most` photos, by default `PHOTOS_TOGETHER` by the type
    of device, and `MOST_PIXELS`. Results differ from those of single photos by rounding alone. If a
    batch cannot be explained, its photos are explained one by one, so that an error is about one
    of them, and comes after the explanations of those before it.
    """
    waiting: list[_Predicted] = []
    for photo in photos:
        started = time.perf_counter()
        predicted = _Predicted(photo, photo.predict(classifier), started)
        if waiting and not predicted.fits(waiting):
            yield from _explain_batch(waiting, explainer, on_iteration)
            waiting = []
        waiting.append(predicted)
        if len(waiting) >= (most or PHOTOS_TOGETHER.get(predicted.device_type, 1)):
            yield from _explain_batch(waiting, explainer, on_iteration)
            waiting = []
    if waiting:
        yield from _explain_batch(waiting, explainer, on_iteration)


PHOTOS_TOGETHER = {"cpu": 4, "cuda": 32}
"""How many photos are explained in one batch, by the type of device; on a CPU, larger batches are
no faster."""

MOST_PIXELS = 2**26
"""The most pixels that the photos of a batch have together, which are decoded at the same time."""


class _Predicted:
    """A photo, what the model says about it, and the seconds that took."""

    def __init__(
        self, photo: Photo | ArrayInput, prediction: InputPrediction, started: float
    ) -> None:
        self.photo = photo
        self.prediction = prediction
        self.seconds = time.perf_counter() - started

    @property
    def device_type(self) -> str:
        """Where it is explained."""
        return self.prediction.inputs.device.type

    @property
    def _form(self) -> Any:
        inputs, outputs = self.prediction.inputs, self.prediction.outputs
        return (inputs.shape, inputs.dtype, inputs.device, outputs.shape)

    @property
    def _pixels(self) -> int:
        if isinstance(self.photo, Photo):
            return self.photo.image.width * self.photo.image.height
        return self.prediction.inputs.numel()

    def fits(self, batch: Sequence[_Predicted]) -> bool:
        """Return whether it can be explained together with the photos of a batch."""
        can_be_batched = self.prediction.outputs.dim() == 1
        pixels = self._pixels + sum(one._pixels for one in batch)
        return can_be_batched and self._form == batch[0]._form and pixels <= MOST_PIXELS


def _explain_batch(
    batch: Sequence[_Predicted], explainer: DMBP, on_iteration: Callable[[], None] | None
) -> Iterator[Explanation[InputPrediction]]:
    if len(batch) > 1:
        try:
            found = _decompose(batch, explainer, on_iteration)
        except DMBPError:  # it is about one of them, or the model takes only one at a time
            found = []
        if found:
            while found:  # none is kept here once the caller has it
                yield found.pop(0)
            return
    for one in batch:
        yield from _decompose([one], explainer, on_iteration)


def _decompose(
    batch: Sequence[_Predicted], explainer: DMBP, on_iteration: Callable[[], None] | None
) -> list[Explanation[InputPrediction]]:
    """Explain the photos of a batch together."""
    started = time.perf_counter()
    predictions = [one.prediction for one in batch]
    outputs = None
    if predictions[0].outputs.dim() == 1:
        outputs = torch.stack([one.outputs for one in predictions])
    targets = [[target.target for target in one.targets] for one in predictions]
    decomposition = explainer.explain(
        torch.cat([one.inputs for one in predictions]),
        target=targets if len(batch) > 1 else targets[0],
        outputs=outputs,
        on_iteration=on_iteration,
    )
    if on_iteration is not None:  # the bar counts every photo's steps
        for _ in range((len(batch) - 1) * explainer.progress_steps):
            on_iteration()
    described = explainer.described()
    taken = (time.perf_counter() - started) / len(batch)
    found: list[Explanation[InputPrediction]] = []
    for number, one in enumerate(batch):
        own = decomposition if len(batch) == 1 else decomposition.of_image(number)
        seconds = {"reading": one.seconds, "explaining": taken}
        if isinstance(one.prediction, Prediction):
            found.append(PhotoExplanation(one.prediction, own, described, seconds, explainer))
        else:
            assert isinstance(one.prediction, ArrayPrediction)
            found.append(ArrayExplanation(one.prediction, own, described, seconds, explainer))
    return found
