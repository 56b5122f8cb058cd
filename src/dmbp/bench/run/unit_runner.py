"""Computes a unit in a worker: decodes photos in threads, computes attributions, scores them.

The photos of the next unit are decoded while a unit is computed, so that an accelerator does not
wait. A worker has one device and keeps the model of the latest task. If maps are kept, each is
computed once, whatever metrics are added to the plan later.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Condition

import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.attribution import METHODS, Method
from dmbp.bench.failures import in_one_line, raise_if_device_is_lost
from dmbp.bench.identity import TaskModel
from dmbp.bench.map_folder import MapFolder
from dmbp.bench.plan import Task, Variant
from dmbp.bench.run.half_precision import HalfPrecision
from dmbp.bench.scoring import STAGES, AttributionBatch, Explain, RandomModels, score
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Part, PhotoTarget, Unit
from dmbp.data.photo import MAX_PIXELS, count_pixels, decode_photo
from dmbp.devices import synchronise
from dmbp.errors import InputError, ModelError, PhotoError, UnsupportedOperation
from dmbp.metrics.insertion import sum_of_channels
from dmbp.metrics.randomisation import Order, Randomised
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
        self._scorer: nn.Module | None = None
        self._reinitialised: nn.Module | None = None
        self._randomised: Randomised | None = None
        self._methods: dict[tuple[str, str, int], Method] = {}
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
                rows += unit.failed(replace(part, targets=(target,)), in_one_line(error))
        for group in by_shape.values():
            rows += self._compute(unit, part, group)
        return rows

    def _compute(
        self, unit: Unit, part: Part, group: Sequence[tuple[PhotoTarget, Tensor]]
    ) -> list[ResultRow]:
        """Compute a group at once; if its maps fail, halve it until the failing photo is found."""
        targets = [target for target, _ in group]
        try:
            inputs = torch.cat([tensor for _, tensor in group])
            inputs = self._classifier.move_inputs(inputs.to(self._device))
            maps, seconds = self._find_maps(unit, part.variant, targets, inputs)
            scorer = self._scoring_model(inputs)
        except Exception as error:  # a user's model may raise anything
            raise_if_device_is_lost(error)
            if len(group) == 1 or self._fails_for_all(unit, part, group, error):
                return unit.failed(replace(part, targets=tuple(targets)), in_one_line(error))
            half = len(group) // 2
            return self._compute(unit, part, group[:half]) + self._compute(unit, part, group[half:])
        batch = AttributionBatch(
            targets,
            inputs,
            maps,
            self._classifier,
            scorer=scorer,
            steps=self._task.steps,
            random=self._random_models(part.variant, inputs),
        )
        return [
            ResultRow(
                unit.cell(target, part.variant),
                result.scores,
                result.curves,
                seconds=taken,
                failure=result.failure,
                unscored=frozenset(result.unscored).union(result.failures),
            )
            for target, result, taken in zip(
                targets, score(batch, part.metrics), seconds, strict=True
            )
        ]

    def _fails_for_all(
        self,
        unit: Unit,
        part: Part,
        group: Sequence[tuple[PhotoTarget, Tensor]],
        error: Exception,
    ) -> bool:
        """Return whether a method seems not to take this network, whatever the photo.

        That is so if it refuses the first and the last photo alone in the same words; halving the
        group of each unit would then take most of a run's time.
        """
        if not isinstance(error, InputError | UnsupportedOperation):
            return False
        for target, tensor in (group[0], group[-1]):
            inputs = self._classifier.move_inputs(tensor.to(self._device))
            try:
                self._find_maps(unit, part.variant, [target], inputs)
            except Exception as alone:  # a user's model may raise anything
                raise_if_device_is_lost(alone)
                if in_one_line(alone) != in_one_line(error):
                    return False
            else:
                return False
        return True

    def _find_maps(
        self, unit: Unit, variant: Variant, targets: Sequence[PhotoTarget], inputs: Tensor
    ) -> tuple[Tensor, list[float | None]]:
        """Return maps, which are read if they were kept, and the seconds each took to compute."""
        cells = [unit.cell(target, variant) for target in targets]
        folder = None if unit.maps is None else MapFolder(unit.maps)
        kept = [None if folder is None else folder.get(cell) for cell in cells]
        missing = [k for k, found in enumerate(kept) if found is None]
        seconds: list[float | None] = [None] * len(cells)
        if missing:
            explain = self._explain(variant, self._classifier.module)
            started = time.perf_counter()
            computed = explain(inputs[missing], [targets[k].index for k in missing])
            synchronise(computed.device)
            taken = (time.perf_counter() - started) / len(missing)
            for k, found in zip(missing, computed, strict=True):
                kept[k], seconds[k] = found[None], taken
                if folder is not None:
                    folder.put(cells[k], found[None])
        return torch.cat([found.to(inputs.device) for found in kept if found is not None]), seconds

    def _scoring_model(self, inputs: Tensor) -> nn.Module:
        """Return what runs masked images: the model, or its pass in 16 bits if the task says so."""
        if self._task.precision == "float32":
            return self._classifier.module
        if self._scorer is None:
            example = inputs[:1].expand(2, *inputs.shape[1:]).contiguous()
            self._scorer = HalfPrecision(self._classifier, example).eval()
        return self._scorer

    def _random_models(self, variant: Variant, inputs: Tensor) -> RandomModels:
        """Return functions that explain the model, and copies of it with random weights."""
        module = self._classifier.module

        def reinitialised(images: Tensor, classes: Sequence[int]) -> Tensor:
            if self._reinitialised is None:
                self._reinitialised = metrics.with_reinitialised_layer(module, inputs[:1])
            return self._explain(variant, self._reinitialised)(images, classes)

        def stages(order: Order) -> Iterator[Explain]:
            if self._randomised is None:
                self._randomised = Randomised(module, inputs[:1], stages=STAGES)
            # One method for all stages: what it has captured reads the weights anew.
            explain = self._explain(variant, self._randomised.model)
            for _ in self._randomised.run(order):
                yield explain

        return RandomModels(self._explain(variant, module), reinitialised, stages)

    def _explain(self, variant: Variant, module: nn.Module) -> Explain:
        """Return a function that explains a model with a variant's method."""

        def explain(images: Tensor, classes: Sequence[int]) -> Tensor:
            method = self._method(variant, module)
            maps = sum_of_channels(method.attribute(images, target=list(classes)))
            return maps if maps.dtype == torch.float64 else maps.float()

        return explain

    def _method(self, variant: Variant, module: nn.Module) -> Method:
        """Return a variant's method for a model that this object keeps."""
        key = (*variant.key, id(module))
        if key not in self._methods:
            spec = METHODS[variant.method]
            settings = dict(variant.settings)
            if spec.probabilistic:
                settings["activation"] = self._classifier.activation
            self._methods[key] = spec(module, **settings)
        return self._methods[key]
