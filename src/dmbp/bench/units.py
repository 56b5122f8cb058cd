"""Divides the missing cells of a plan into units, and looks up the rows of those that are there.

A question is one class on one photo, and a cell is a question answered by one variant of a method.
A unit has the missing cells of a few photos: it is small, so that it can be lost and tried again,
and each of its photos is decoded once. `missing_units` makes units as they are needed, so that only
those assigned to a worker are in memory. `results` yields the row of every cell of a plan. Both
make cells with `make_cell`, so a row counts if its photo, weights, settings and scoring are those
of the plan, whatever else the store holds.
"""

import hashlib
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from dmbp.bench.identity import ModelIdentity, load_task_model
from dmbp.bench.plan import Plan, Task, Variant
from dmbp.bench.store import Cell, DigestCache, ResultRow, Store
from dmbp.data.dataset import read_dataset
from dmbp.data.photo import MAX_BYTES
from dmbp.data.sample import Label, Sample
from dmbp.errors import DMBPError, PhotoError, TargetError, one_line
from dmbp.files import check_file, reason, shown
from dmbp.models import Preprocessing

PHOTOS_AT_ONCE = 256
"""Photos whose questions are looked up in the store together."""

READER_THREADS = 8
"""Threads that read files to digest them; on a file server they mostly wait."""

Shard = tuple[int, int]
"""(i, n): every n-th photo, starting at the i-th, counted from 0."""

WHOLE: Shard = (0, 1)


@dataclass(frozen=True)
class PhotoTarget:
    """A question: a class on a photo.

    `index` is the output of the class, `others` are the outputs of the other classes on the photo.
    `digest` is the digest of the photo's file; if the file cannot be read, `problem` says why.
    """

    sample: Sample
    label: Label
    index: int
    others: tuple[int, ...]
    digest: str
    problem: str | None = None


def question_count(task: Task, shard: Shard = WHOLE) -> int:
    """Return how many questions a task has; no photo is opened."""
    return sum(len(sample.labels) for sample in _samples(task, shard))


def questions(
    task: Task, identity: ModelIdentity, digests: DigestCache, *, shard: Shard = WHOLE
) -> Iterator[list[PhotoTarget]]:
    """Yield the questions of a task in lists, each on at most `PHOTOS_AT_ONCE` photos."""
    samples = _samples(task, shard)
    for start in range(0, len(samples), PHOTOS_AT_ONCE):
        yield _targets(samples[start : start + PHOTOS_AT_ONCE], identity, digests)


def _samples(task: Task, shard: Shard) -> Sequence[Sample]:
    part, parts = shard
    return read_dataset(task.dataset, task.path).first(task.first).samples[part::parts]


def _targets(
    samples: Sequence[Sample], identity: ModelIdentity, digests: DigestCache
) -> list[PhotoTarget]:
    targets: list[PhotoTarget] = []
    by_path = _digests([sample.path for sample in samples], digests)
    for sample in samples:
        indices = [class_index(label, identity, sample) for label in sample.labels]
        digest, problem = by_path[sample.path]
        for label, index in zip(sample.labels, indices, strict=True):
            others = tuple(other for other in indices if other != index)
            targets.append(PhotoTarget(sample, label, index, others, digest, problem))
    return targets


def _digests(paths: Sequence[Path], cache: DigestCache) -> dict[Path, tuple[str, str | None]]:
    """Return each file's digest, and the reason if it cannot be read, else None."""
    known = {path: digest for path in paths if (digest := cache.get(path)) is not None}
    unknown = [path for path in paths if path not in known]
    with ThreadPoolExecutor(READER_THREADS) as threads:
        computed = dict(zip(unknown, threads.map(_digest, unknown), strict=True))
    cache.put({path: digest for path, (digest, problem) in computed.items() if problem is None})
    return {path: (digest, None) for path, digest in known.items()} | computed


def _digest(path: Path) -> tuple[str, str | None]:
    try:
        check_file(path, what="file", error=PhotoError, most_bytes=MAX_BYTES)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16], None
    except PhotoError as error:
        return "unreadable", str(error)
    except OSError as error:
        return "unreadable", f"{shown(path)} cannot be read: {reason(error)}"


def class_index(label: Label, identity: ModelIdentity, sample: Sample) -> int:
    """Return the output of the class that a label names, by its number or by its exact name."""
    if isinstance(label, int):
        return label
    if identity.classes is None:
        raise TargetError(
            f"{sample.name} is labelled {label!r}, but {identity.name} knows its classes by "
            "number: give their names with 'classes'"
        )
    if label not in identity.classes:
        raise TargetError(
            f"{sample.name} is labelled {label!r}, which is not a class of {identity.name}"
        )
    return identity.classes.index(label)


@dataclass(frozen=True)
class Part:
    """Questions that one variant of a method answers together."""

    variant: Variant
    targets: tuple[PhotoTarget, ...]


@dataclass(frozen=True)
class Unit:
    """Missing cells of a few photos, with a part for each variant, computed in this order."""

    task: Task
    identity: ModelIdentity
    parts: tuple[Part, ...]

    def cell(self, target: PhotoTarget, variant: Variant) -> Cell:
        """Return the cell of a question answered by a variant."""
        return make_cell(self.task, self.identity, target, variant)

    def failed(self, part: Part, reason: str) -> list[ResultRow]:
        """Return rows that say why a part failed."""
        cells = (self.cell(target, part.variant) for target in part.targets)
        return [ResultRow(cell, failure=reason) for cell in cells]

    def without_first_part(self) -> "Unit":
        """Return the unit that remains once the first part is computed."""
        return replace(self, parts=self.parts[1:])

    def photo_paths(self) -> set[Path]:
        """Return the paths of the photos that the unit needs."""
        return {target.sample.path for part in self.parts for target in part.targets}


def make_cell(task: Task, identity: ModelIdentity, target: PhotoTarget, variant: Variant) -> Cell:
    """Return the cell of a question answered by a variant of a method."""
    return Cell(
        dataset=task.dataset,
        image=target.sample.name,
        photo=target.digest,
        target=str(target.index),
        model=task.model,
        weights=identity.weights,
        method=variant.method,
        settings=dict(variant.settings),
        scoring={
            "metrics": sorted(task.metrics),
            "steps": task.steps,
            "activation": identity.activation,
            "others": list(target.others) if "cIM" in task.metrics else [],
            "seen": _seen(identity.preprocessing),
        },
    )


def _seen(preprocessing: Preprocessing) -> list[Any]:
    """Return the settings that decide what the model saw.

    The last ones are left out if they are the defaults, so that results from before there were such
    settings are found.
    """
    *first, scale, channels, longest, multiple = astuple(preprocessing)
    if (longest, multiple) != (None, 1):
        return [*first, scale, channels, longest, multiple]
    return first if (scale, channels) == (1.0, "rgb") else [*first, scale, channels]


class SkippedTasks:
    """Counts the tasks of a plan that cannot run because of their model or labels.

    The other tasks still run. If no task can run, the last error is raised.
    """

    def __init__(self, plan: Plan) -> None:
        self.count = 0
        self._tasks = len(plan.tasks)

    @contextmanager
    def skip_on_error(self, task: Task) -> Generator[None]:
        """Turn a `DMBPError` inside into a warning that the task is left out."""
        try:
            yield
        except DMBPError as error:
            self.count += 1
            if self.count == self._tasks:
                raise
            warnings.warn(f"the task {task.name!r} is left out: {one_line(error)}", stacklevel=2)


def missing_units(
    plan: Plan,
    store: Store,
    *,
    identify: Callable[[Task], ModelIdentity],
    skipped: SkippedTasks,
    on_existing: Callable[[int, int], None] = lambda _count, _failed: None,
    batch: int = 32,
    shard: Shard = WHOLE,
    retry: bool = False,
) -> Iterator[Unit]:
    """Yield the cells of a plan that have no row yet, in units, task by task.

    Args:
        plan: The plan.
        store: The rows so far.
        identify: Returns the identity of a task's model.
        skipped: Counts the tasks that cannot run.
        on_existing: Called with how many cells have a row, and how many of those failed.
        batch: The largest number of questions in a unit.
        shard: The photos to take.
        retry: Whether cells that failed before count as missing.
    """
    for task in plan.tasks:
        with skipped.skip_on_error(task):
            identity = identify(task)
            for targets in questions(task, identity, store.digests, shard=shard):
                keys = [_keys(task, identity, target, plan) for target in targets]
                flat = [key for question_keys in keys for key in question_keys]
                failed = store.failed_by_key(flat)
                existing = {key for key in failed if not (retry and failed[key])}
                on_existing(
                    sum(key in existing for key in flat), sum(failed[key] for key in existing)
                )
                missing = _missing(plan, targets, keys, existing)
                for start in range(0, len(missing), batch):
                    yield Unit(task, identity, _parts(missing[start : start + batch]))


def _keys(task: Task, identity: ModelIdentity, target: PhotoTarget, plan: Plan) -> list[str]:
    """Return the keys of a question's cells, one per variant."""
    return [make_cell(task, identity, target, variant).key for variant in plan.variants]


def _missing(
    plan: Plan,
    targets: Sequence[PhotoTarget],
    keys: Sequence[Sequence[str]],
    existing: set[str],
) -> list[tuple[PhotoTarget, list[Variant]]]:
    """Return the questions that lack a row, each with the variants for which it does.

    Of two variants that differ only in their label, one is computed.
    """
    missing: list[tuple[PhotoTarget, list[Variant]]] = []
    for target, question_keys in zip(targets, keys, strict=True):
        by_key = dict(zip(question_keys, plan.variants, strict=True))
        variants = [variant for key, variant in by_key.items() if key not in existing]
        if variants:
            missing.append((target, variants))
    return missing


def _parts(missing: Sequence[tuple[PhotoTarget, list[Variant]]]) -> tuple[Part, ...]:
    """Group questions by variant."""
    by_label: dict[str, tuple[Variant, list[PhotoTarget]]] = {}
    for target, variants in missing:
        for variant in variants:
            by_label.setdefault(variant.label, (variant, []))[1].append(target)
    return tuple(Part(variant, tuple(targets)) for variant, targets in by_label.values())


def results(
    task: Task, plan: Plan, store: Store
) -> Iterator[tuple[PhotoTarget, Variant, ResultRow | None]]:
    """Yield every question of a task with every variant, and the row of the cell if it has one."""
    identity = load_task_model(task, "cpu").identity
    for targets in questions(task, identity, store.digests):
        for target in targets:
            keys = _keys(task, identity, target, plan)
            rows = store.rows_by_key(keys)
            for key, variant in zip(keys, plan.variants, strict=True):
                yield target, variant, rows.get(key)
