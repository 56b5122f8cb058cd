"""What a worker does: maps of a few questions by one method, their scores, and the rows of both."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from dmbp import metrics
from dmbp.attribution import METHODS, Method
from dmbp.bench.cell import Cell
from dmbp.bench.photos import Photos
from dmbp.bench.plan import Task
from dmbp.bench.store import Row
from dmbp.bench.unit import Job, Part
from dmbp.errors import WorkerError
from dmbp.metrics.curve import CurveOptions, area
from dmbp.models import Classifier

SCORED_AT_ONCE = 256

DEVICE_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()  # since PyTorch 2.8
)


class Worker:
    """The model of a task and the methods on it, made once."""

    def __init__(self, task: Task, classifier: Classifier) -> None:
        self.task = task
        self._classifier = classifier
        self._methods: dict[str, Method] = {}
        parameter = next(classifier.module.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    def rows(self, part: Part, photos: Photos) -> list[Row]:
        """The rows of some jobs of one method; one that fails does not take the others along."""
        rows: list[Row] = []
        ready: dict[torch.Size, list[tuple[Job, Tensor]]] = {}
        for job in part:
            try:
                tensor = photos.input(job.asked)
                ready.setdefault(tensor.shape, []).append((job, tensor))
            except Exception as error:  # whatever a decoder makes of a broken file
                rows.append(Row(job.cell, failure=in_one_line(error)))
        for group in ready.values():
            rows += self._together(group)
        return rows

    def _together(self, group: Sequence[tuple[Job, Tensor]]) -> list[Row]:
        """All at once, or else each half: what one image breaks is not the others' failure."""
        try:
            return self._scored([job for job, _ in group], torch.cat([x for _, x in group]))
        except Exception as error:  # also of a user's own model, and memory that does not suffice
            _still_usable(error)
            if len(group) == 1:
                return [Row(group[0][0].cell, failure=in_one_line(error))]
        half = len(group) // 2
        return self._together(group[:half]) + self._together(group[half:])

    def _scored(self, jobs: Sequence[Job], inputs: Tensor) -> list[Row]:
        inputs = inputs.to(self._device)
        target = [job.asked.index for job in jobs]
        started = time.perf_counter()
        maps = self._method(jobs[0].cell).attribute(inputs, target=target)
        if maps.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / len(jobs)
        scores: list[dict[str, float]] = [{} for _ in jobs]
        curves: list[dict[str, list[float]]] = [{} for _ in jobs]
        for metric in self.task.metrics:
            self._score(metric, jobs, inputs, maps, scores, curves)
        return [Row(job.cell, scores[k], curves[k], seconds=seconds) for k, job in enumerate(jobs)]

    def _score(
        self,
        metric: str,
        jobs: Sequence[Job],
        inputs: Tensor,
        maps: Tensor,
        scores: list[dict[str, float]],
        curves: list[dict[str, list[float]]],
    ) -> None:
        options: CurveOptions = {
            "steps": self.task.steps,
            "activation": self._classifier.activation,
            "internal_batch_size": SCORED_AT_ONCE,
        }
        module = self._classifier.module
        target = [job.asked.index for job in jobs]
        if metric in ("IM", "deletion"):
            curve = metrics.insertion_curve if metric == "IM" else metrics.deletion_curve
            found = curve(module, inputs, target, maps, **options)
            for k, (line, score) in enumerate(zip(found.tolist(), area(found), strict=True)):
                scores[k][metric], curves[k][metric] = float(score), [round(p, 6) for p in line]
        elif metric == "cIM":
            several = [k for k, job in enumerate(jobs) if job.asked.others]
            if several:
                others = [jobs[k].asked.others for k in several]
                found = metrics.complementary_insertion(
                    module, inputs[several], others, maps[several], **options
                )
                for k, score in zip(several, found.tolist(), strict=True):
                    scores[k][metric] = score
        else:
            self._point(jobs, maps, scores)

    def _point(self, jobs: Sequence[Job], maps: Tensor, scores: list[dict[str, float]]) -> None:
        """The pointing game, where boxes are known and the photo is squeezed."""
        side = maps.shape[-1]
        for k, job in enumerate(jobs):
            annotation = job.asked.sample.annotation
            if annotation is not None and self._classifier.preprocessing.fit == "squeeze":
                boxes = annotation.boxes(str(job.asked.label), side=side)
                scores[k]["pointing"] = float(metrics.pointing_game(maps[k : k + 1].cpu(), [boxes]))

    def _method(self, cell: Cell) -> Method:
        name = cell.method
        if name not in self._methods:
            row = METHODS[name]
            settings = dict(cell.settings)
            if row.probabilistic:
                settings["activation"] = self._classifier.activation
            self._methods[name] = row(self._classifier.module, **settings)
        return self._methods[name]


def _still_usable(error: Exception) -> None:
    """A `WorkerError` where a process cannot use its GPU any more: all that follows would fail."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DEVICE_ERRORS):
            raise WorkerError(
                f"the device cannot be used any more: {in_one_line(cause)}"
            ) from error
        cause = cause.__cause__


def in_one_line(error: BaseException) -> str:
    """What an exception says, as a row keeps it."""
    return " ".join(str(error).split())[:500] or type(error).__name__
