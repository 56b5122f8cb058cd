"""Computes a unit in a worker: decodes photos in threads, computes attributions, scores them.

The photos of the next unit are decoded while a unit is computed, so that an accelerator does not
wait. A worker has one device and keeps the model of the latest task.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Condition

import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.attribution import METHODS, Method
from dmbp.bench.identity import TaskModel
from dmbp.bench.plan import Task, Variant
from dmbp.bench.scoring import AttributionBatch, score
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Part, PhotoTarget, Unit
from dmbp.data.photo import MAX_PIXELS, count_pixels, decode_photo
from dmbp.devices import synchronise
from dmbp.errors import ModelError, PhotoError, WorkerError
from dmbp.models import Classifier, Preprocessing

UNITS_AHEAD = 1
"""Units decoded while another is computed; more would only take memory."""

MAX_DECODERS = 8
"""Decoding threads; about as many as an accelerator needs for photos from a camera."""

LoadModel = Callable[[Task], TaskModel]


class UnitRunner:
    """Computes units one after the other; they arrive task by task, so one model is kept."""

    def __init__(self, load: LoadModel, *, decoders: int = MAX_DECODERS) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(decoders)
        self._room = DecodingRoom()
        self._latest: tuple[Task, TaskRunner] | None = None

    def decode(self, unit: Unit) -> "DecodedPhotos":
        """Start to decode a unit's photos."""
        return DecodedPhotos(unit, self._threads, self._room)

    def rows(self, unit: Unit, photos: "DecodedPhotos") -> Iterator[list[ResultRow]]:
        """Yield the rows of a unit by part; if its model cannot be loaded, they are failures."""
        try:
            runner = self._task_runner(unit)
        except Exception as error:  # such as a file that only this machine lacks, or memory
            for part in unit.parts:
                yield unit.failed(part, in_one_line(error))
            return
        for part in unit.parts:
            yield runner.rows(unit, part, photos)

    def close(self) -> None:
        """Stop decoding."""
        self._threads.shutdown(cancel_futures=True)

    def _task_runner(self, unit: Unit) -> "TaskRunner":
        if self._latest is None or self._latest[0] != unit.task:
            self._latest = None  # frees the memory of the previous model first
            self._latest = unit.task, self._load_checked(unit)
        return self._latest[1]

    def _load_checked(self, unit: Unit) -> "TaskRunner":
        model = self._load(unit.task)
        if model.identity.weights != unit.identity.weights:
            raise ModelError(
                f"the weights of {unit.task.model} are not those that the run began with: give "
                "every worker the same file"
            )
        return TaskRunner(unit.task, model.classifier)


class DecodingRoom:
    """Limits how many pixels are decoded at once, whatever the number of threads.

    Eight threads with a photo of 64 megapixels each would take 10 GB. Small photos are decoded side
    by side; a photo waits while those that are being decoded and itself have more than
    `MAX_PIXELS`.
    """

    def __init__(self, pixels: int = MAX_PIXELS) -> None:
        self._pixels = self._free = pixels
        self._changed = Condition()

    @contextmanager
    def taken(self, pixels: int) -> Generator[None]:
        """Wait until there is room for so many pixels, and take it inside."""
        needed = min(pixels, self._pixels)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            with self._changed:
                self._free += needed
                self._changed.notify_all()


class DecodedPhotos:
    """The photos of one unit; each is decoded once for all of its classes and methods."""

    def __init__(self, unit: Unit, threads: Executor, room: DecodingRoom) -> None:
        preprocessing = unit.identity.preprocessing
        self._inputs: dict[Path, Future[Tensor]] = {
            path: threads.submit(_decode, path, preprocessing, room) for path in unit.photo_paths()
        }

    def input(self, target: PhotoTarget) -> Tensor:
        """Return a question's input, (1, channels, height, width), or raise a `PhotoError`."""
        if target.problem is not None:
            raise PhotoError(target.problem)
        return self._inputs[target.sample.path].result()


def _decode(path: Path, preprocessing: Preprocessing, room: DecodingRoom) -> Tensor:
    with room.taken(count_pixels(path)):
        return preprocessing.tensor(preprocessing.view(decode_photo(path)))


class TaskRunner:
    """A task's model and the methods that explain it, each of which is built once."""

    def __init__(self, task: Task, classifier: Classifier) -> None:
        self._task = task
        self._classifier = classifier
        self._reinitialised: nn.Module | None = None
        self._methods: dict[tuple[str, str, bool], Method] = {}
        parameter = next(classifier.module.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    def rows(self, unit: Unit, part: Part, photos: DecodedPhotos) -> list[ResultRow]:
        """Return the rows of a part; a question that fails does not affect the others."""
        rows: list[ResultRow] = []
        by_shape: dict[torch.Size, list[tuple[PhotoTarget, Tensor]]] = {}
        for target in part.targets:
            try:
                tensor = photos.input(target)
                by_shape.setdefault(tensor.shape, []).append((target, tensor))
            except Exception as error:  # decoders raise almost anything for a broken file
                cell = unit.cell(target, part.variant)
                rows.append(ResultRow(cell, failure=in_one_line(error)))
        for group in by_shape.values():
            rows += self._compute(unit, part.variant, group)
        return rows

    def _compute(
        self, unit: Unit, variant: Variant, group: Sequence[tuple[PhotoTarget, Tensor]]
    ) -> list[ResultRow]:
        """Compute a group at once; if that fails, halve it until the failing photo is found."""
        targets = [target for target, _ in group]
        try:
            return self._compute_and_score(
                unit, variant, targets, torch.cat([tensor for _, tensor in group])
            )
        except Exception as error:  # a user's model may raise anything
            _raise_if_device_is_lost(error)
            if len(group) == 1:
                return unit.failed(Part(variant, tuple(targets)), in_one_line(error))
        half = len(group) // 2
        return self._compute(unit, variant, group[:half]) + self._compute(
            unit, variant, group[half:]
        )

    def _compute_and_score(
        self, unit: Unit, variant: Variant, targets: Sequence[PhotoTarget], inputs: Tensor
    ) -> list[ResultRow]:
        inputs = self._classifier.move_inputs(inputs.to(self._device))
        classes = [target.index for target in targets]
        started = time.perf_counter()
        maps = self._method(variant).attribute(inputs, target=classes)
        synchronise(maps.device)
        seconds = (time.perf_counter() - started) / len(targets)
        batch = AttributionBatch(
            targets,
            inputs,
            maps,
            self._classifier,
            steps=self._task.steps,
            reinitialised_maps=lambda: self._reinitialised_maps(variant, classes, inputs),
        )
        return [
            ResultRow(unit.cell(target, variant), result.scores, result.curves, seconds=seconds)
            for target, result in zip(targets, score(batch, self._task.metrics), strict=True)
        ]

    def _reinitialised_maps(self, variant: Variant, classes: list[int], inputs: Tensor) -> Tensor:
        """Return the maps of the model with its last layer re-initialised once for all photos."""
        if self._reinitialised is None:
            self._reinitialised = metrics.with_reinitialised_layer(
                self._classifier.module, inputs[:1]
            )
        return self._method(variant, reinitialised=True).attribute(inputs, target=classes)

    def _method(self, variant: Variant, *, reinitialised: bool = False) -> Method:
        """Return a variant's method for the model, or for the re-initialised model."""
        key = (*variant.key, reinitialised)
        if key not in self._methods:
            spec = METHODS[variant.method]
            settings = dict(variant.settings)
            if spec.probabilistic:
                settings["activation"] = self._classifier.activation
            module = self._reinitialised if reinitialised else self._classifier.module
            assert module is not None
            self._methods[key] = spec(module, **settings)
        return self._methods[key]


DEVICE_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()  # since PyTorch 2.8
)


def _raise_if_device_is_lost(error: Exception) -> None:
    """Raise a `WorkerError` if the process can no longer use its GPU: every cell would fail."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DEVICE_ERRORS):
            raise WorkerError(
                f"the device cannot be used any more: {in_one_line(cause)}"
            ) from error
        cause = cause.__cause__


def in_one_line(error: BaseException) -> str:
    """Return the message of an exception as one line of at most 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__
