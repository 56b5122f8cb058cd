"""The photos of a unit as its model sees them, read and decoded in threads.

Made for the next unit while the last one is computed, so that an accelerator does not wait.

What a worker does: maps of a few questions by one method, their scores, and the rows of both.

Where units are computed: one device, the model of the latest task, threads that decode.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.attribution import METHODS, Method
from dmbp.bench.identity import weights_digest
from dmbp.bench.plan import Task
from dmbp.bench.questions import Asked
from dmbp.bench.scoring import Maps, scores_of
from dmbp.bench.store import Cell, ResultRow
from dmbp.bench.units import Job, Part, Unit
from dmbp.data.photo import decode_photo
from dmbp.errors import ModelError, PhotoError, WorkerError
from dmbp.models import Classifier, Preprocessing


class Photos:
    """The photos of one unit, each decoded once for all its classes and methods."""

    def __init__(self, unit: Unit, threads: Executor) -> None:
        seen = unit.subject.preprocessing
        self._found: dict[Path, Future[Tensor]] = {
            path: threads.submit(_input, path, seen) for path in unit.paths()
        }

    def input(self, asked: Asked) -> Tensor:
        """The input for a question, (1, 3, height, width); a `PhotoError` where there is none."""
        if asked.problem is not None:
            raise PhotoError(asked.problem)
        return self._found[asked.sample.path].result()


def _input(path: Path, seen: Preprocessing) -> Tensor:
    return seen.tensor(seen.view(decode_photo(path)))


DEVICE_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()  # since PyTorch 2.8
)


class CellWorker:
    """The model of a task and the methods on it, made once."""

    def __init__(self, task: Task, classifier: Classifier) -> None:
        self.task = task
        self._classifier = classifier
        self._forgetful: nn.Module | None = None
        self._methods: dict[tuple[str, str, bool], Method] = {}
        parameter = next(classifier.module.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    def rows(self, part: Part, photos: Photos) -> list[ResultRow]:
        """The rows of some jobs of one method; one that fails does not take the others along."""
        rows: list[ResultRow] = []
        ready: dict[torch.Size, list[tuple[Job, Tensor]]] = {}
        for job in part:
            try:
                tensor = photos.input(job.asked)
                ready.setdefault(tensor.shape, []).append((job, tensor))
            except Exception as error:  # whatever a decoder makes of a broken file
                rows.append(ResultRow(job.cell, failure=in_one_line(error)))
        for group in ready.values():
            rows += self._together(group)
        return rows

    def _together(self, group: Sequence[tuple[Job, Tensor]]) -> list[ResultRow]:
        """All at once, or else each half: what one image breaks is not the others' failure."""
        try:
            return self._scored([job for job, _ in group], torch.cat([x for _, x in group]))
        except Exception as error:  # also of a user's own model, and memory that does not suffice
            _still_usable(error)
            if len(group) == 1:
                return [ResultRow(group[0][0].cell, failure=in_one_line(error))]
        half = len(group) // 2
        return self._together(group[:half]) + self._together(group[half:])

    def _scored(self, jobs: Sequence[Job], inputs: Tensor) -> list[ResultRow]:
        inputs = self._classifier.move_inputs(inputs.to(self._device))
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
            ResultRow(job.cell, one.scores, one.curves, seconds=seconds)
            for job, one in zip(jobs, found, strict=True)
        ]

    def _maps_forgotten(self, jobs: Sequence[Job], inputs: Tensor) -> Tensor:
        """The maps of a model that has forgotten its last layer, the same for all photos."""
        if self._forgetful is None:
            self._forgetful = metrics.with_reinitialised_layer(self._classifier.module, inputs[:1])
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


AHEAD = 1
"""Units decoded while another is computed; more would hold memory and win nothing."""

DECODERS = 8
"""Threads at most: about what keeps an accelerator fed with photos from a camera."""


class UnitRunner:
    """Computes units one after the other; units come task by task, so one model is kept."""

    def __init__(self, load: Callable[[Task], Classifier], *, decoders: int = DECODERS) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(decoders)
        self._latest: tuple[Task, CellWorker] | None = None

    def photos(self, unit: Unit) -> Photos:
        """Begin to decode a unit's photos."""
        return Photos(unit, self._threads)

    def rows(self, unit: Unit, photos: Photos) -> Iterator[list[ResultRow]]:
        """The rows of a unit, part by part; where its model cannot be had, why."""
        try:
            worker = self._worker(unit)
        except Exception as error:  # a file that only this machine does not have, or memory
            said = in_one_line(error)
            for part in unit.parts:
                yield [ResultRow(job.cell, failure=said) for job in part]
            return
        for part in unit.parts:
            yield worker.rows(part, photos)

    def close(self) -> None:
        """Stop decoding."""
        self._threads.shutdown(cancel_futures=True)

    def _worker(self, unit: Unit) -> CellWorker:
        if self._latest is None or self._latest[0] != unit.task:
            self._latest = None  # its memory first
            self._latest = unit.task, self._made(unit)
        return self._latest[1]

    def _made(self, unit: Unit) -> CellWorker:
        classifier = self._load(unit.task)
        if weights_digest(classifier) != unit.subject.weights:
            raise ModelError(
                f"the weights of {unit.task.model} are not those that the run began with: give "
                "every worker the same file"
            )
        return CellWorker(unit.task, classifier)
