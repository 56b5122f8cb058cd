"""What a worker does: maps of a few questions by one method, their scores, and the rows of both."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.attribution import METHODS, Method
from dmbp.bench.cell import Cell
from dmbp.bench.photos import Photos
from dmbp.bench.plan import Task
from dmbp.bench.scoring import Maps, scores_of
from dmbp.bench.store import Row
from dmbp.bench.unit import Job, Part
from dmbp.errors import WorkerError
from dmbp.models import Classifier

DEVICE_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()  # since PyTorch 2.8
)


class Worker:
    """The model of a task and the methods on it, made once."""

    def __init__(self, task: Task, classifier: Classifier) -> None:
        self.task = task
        self._classifier = classifier
        self._forgetful: nn.Module | None = None
        self._methods: dict[tuple[str, str, bool], Method] = {}
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
        inputs = self._classifier.placed(inputs.to(self._device))
        target = [job.asked.index for job in jobs]
        started = time.perf_counter()
        maps = self._method(jobs[0].cell).attribute(inputs, target=target)
        if maps.is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - started) / len(jobs)
        given = Maps(
            [job.asked for job in jobs],
            inputs,
            maps,
            self._classifier,
            steps=self.task.steps,
            forgotten=lambda: self._maps_forgotten(jobs, inputs),
        )
        found = scores_of(given, self.task.metrics)
        return [
            Row(job.cell, one.scores, one.curves, seconds=seconds)
            for job, one in zip(jobs, found, strict=True)
        ]

    def _maps_forgotten(self, jobs: Sequence[Job], inputs: Tensor) -> Tensor:
        """The maps of a model that has forgotten its last layer, the same for all photos."""
        if self._forgetful is None:
            self._forgetful = metrics.reinitialised(self._classifier.module, inputs[:1])
        target = [job.asked.index for job in jobs]
        return self._method(jobs[0].cell, forgetful=True).attribute(inputs, target=target)

    def _method(self, cell: Cell, *, forgetful: bool = False) -> Method:
        """A cell's method, made once, on the model or on the one that has forgotten."""
        name = (*cell.variant, forgetful)
        if name not in self._methods:
            row = METHODS[cell.method]
            settings = dict(cell.settings)
            if row.probabilistic:
                settings["activation"] = self._classifier.activation
            module = self._forgetful if forgetful else self._classifier.module
            assert module is not None
            self._methods[name] = row(module, **settings)
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
