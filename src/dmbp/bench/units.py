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
from dataclasses import astuple, dataclass, fields, replace
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
    `mask` is a picture that shows where the class is, if the dataset has one.
    """

    sample: Sample
    label: Label
    index: int
    others: tuple[int, ...]
    digest: str
    problem: str | None = None
    mask: Path | None = None
    mask_digest: str | None = None


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
    masks = [mask for sample in samples for mask in sample.mask_paths() if mask is not None]
    by_path = _digests([*(sample.path for sample in samples), *masks], digests)
    for sample in samples:
        indices = [class_index(label, identity, sample) for label in sample.labels]
        digest, problem = by_path[sample.path]
        labels = zip(sample.labels, indices, sample.mask_paths(), strict=True)
        for label, index, mask in labels:
            others = tuple(other for other in indices if other != index)
            shown = None if mask is None else by_path[mask][0]
            targets.append(PhotoTarget(sample, label, index, others, digest, problem, mask, shown))
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
    """Questions that one variant of a method answers together, and the metrics to compute."""

    variant: Variant
    targets: tuple[PhotoTarget, ...]
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Unit:
    """Missing cells of a few photos, with a part for each variant, computed in this order.

    `maps` is the folder in which maps are kept, or None.
    """

    task: Task
    identity: ModelIdentity
    parts: tuple[Part, ...]
    maps: Path | None = None

    def cell(self, target: PhotoTarget, variant: Variant) -> Cell:
        """Return the cell of a question answered by a variant."""
        return make_cell(self.task, self.identity, target, variant)

    def failed(self, part: Part, reason: str) -> list[ResultRow]:
        """Return rows that say why a part failed."""
        cells = (self.cell(target, part.variant) for target in part.targets)
        tried = frozenset(part.metrics)
        return [ResultRow(cell, failure=reason, unscored=tried) for cell in cells]

    def without_first_part(self) -> "Unit":
        """Return the unit that remains once the first part is computed."""
        return replace(self, parts=self.parts[1:])

    def photo_paths(self) -> set[Path]:
        """Return the paths of the photos that the unit needs."""
        return {target.sample.path for part in self.parts for target in part.targets}


def make_cell(task: Task, identity: ModelIdentity, target: PhotoTarget, variant: Variant) -> Cell:
    """Return the cell of a question answered by a variant of a method."""
    scoring: dict[str, Any] = {
        "steps": task.steps,
        "activation": identity.activation,
        "others": list(target.others),
        "seen": _seen(identity.preprocessing),
    }
    if task.precision != "float32":
        scoring["precision"] = task.precision
    if target.mask_digest is not None:
        scoring["mask"] = target.mask_digest
    return Cell(
        dataset=task.dataset,
        image=target.sample.name,
        photo=target.digest,
        target=str(target.index),
        model=task.model,
        weights=identity.weights,
        method=variant.method,
        settings=dict(variant.settings),
        scoring=scoring,
    )


def _cell_of_layout_1(cell: Cell, task: Task) -> Cell:
    """Return a cell as it was while rows belonged to one list of metrics."""
    others = cell.scoring["others"] if "cIM" in task.metrics else []
    return replace(
        cell, scoring={**cell.scoring, "others": others, "metrics": sorted(task.metrics)}
    )


def find_rows(
    task: Task,
    identity: ModelIdentity,
    targets: Sequence[PhotoTarget],
    variants: Sequence[Variant],
    store: Store,
) -> list[list[tuple[Variant, Cell, ResultRow | None]]]:
    """Return the cells of each question, one for each of the variants, with their rows.

    A row that was written while rows belonged to one list of metrics counts if the task has exactly
    these metrics.
    """
    cells = [
        [(variant, make_cell(task, identity, target, variant)) for variant in variants]
        for target in targets
    ]
    flat = [cell for own in cells for _, cell in own]
    rows = store.rows_by_key(cell.key for cell in flat)
    old = {_cell_of_layout_1(cell, task).key: cell for cell in flat if cell.key not in rows}
    for key, row in store.rows_by_key(old).items():
        left = frozenset(task.metrics).difference(row.scores)
        rows[old[key].key] = replace(row, cell=old[key], unscored=left)
    return [[(variant, cell, rows.get(cell.key)) for variant, cell in own] for own in cells]


SEEN_LENGTHS = (6, 8, 10)
"""How many settings of a preprocessing there have been."""


def _seen(preprocessing: Preprocessing) -> list[Any]:
    """Return the settings that decide what the model saw.

    The last ones are left out if they are the defaults, so that results from before there were such
    settings are found.
    """
    values = astuple(preprocessing)
    defaults = [field.default for field in fields(preprocessing)]
    for end in SEEN_LENGTHS:
        if list(values[end:]) == defaults[end:]:
            return list(values[:end])
    return list(values)


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


Pending = dict[str, frozenset[str]]
"""The metrics that workers are computing, by the keys of the cells."""


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
    pending: Pending | None = None,
    maps: Path | None = None,
) -> Iterator[Unit]:
    """Yield the cells of a plan that lack a metric, in units, task by task.

    Tasks that differ only in name and metrics are one, and so are variants that differ only in
    their label.

    Args:
        plan: The plan.
        store: The rows so far.
        identify: Returns the identity of a task's model.
        skipped: Counts the tasks that cannot run.
        on_existing: Called with how many cells are complete, and how many of those failed.
        batch: The largest number of questions in a unit.
        shard: The photos to take.
        retry: Whether cells that failed before count as missing.
        pending: What was yielded and has no row yet. It is added to here and taken from by the
            caller; two tasks may have questions in common.
        maps: The folder in which maps are kept, or None.
    """
    pending = {} if pending is None else pending
    for task in plan.computed_tasks:
        variants = plan.computed_variants(task)
        with skipped.skip_on_error(task):
            identity = identify(task)
            for targets in questions(task, identity, store.digests, shard=shard):
                missing: list[tuple[PhotoTarget, list[tuple[Variant, tuple[str, ...]]]]] = []
                existing = failed = 0
                found = find_rows(task, identity, targets, variants, store)
                for target, cells in zip(targets, found, strict=True):
                    lacking: list[tuple[Variant, tuple[str, ...]]] = []
                    for variant, cell, row in cells:
                        metrics = _lacking(task, row, pending.get(cell.key), retry=retry)
                        if metrics:
                            lacking.append((variant, metrics))
                            pending[cell.key] = pending.get(cell.key, frozenset()).union(metrics)
                        else:
                            existing += 1
                            failed += row is not None and not row.settled.issuperset(task.metrics)
                    if lacking:
                        missing.append((target, lacking))
                on_existing(existing, failed)
                for start in range(0, len(missing), batch):
                    yield Unit(task, identity, _parts(missing[start : start + batch]), maps)


def _lacking(
    task: Task, row: ResultRow | None, pending: frozenset[str] | None, *, retry: bool
) -> tuple[str, ...]:
    """Return the task's metrics that a cell lacks, in the task's order."""
    done = frozenset[str]() if row is None else row.settled if retry else row.tried
    done |= pending or frozenset()
    return tuple(metric for metric in task.metrics if metric not in done)


def _parts(
    missing: Sequence[tuple[PhotoTarget, list[tuple[Variant, tuple[str, ...]]]]],
) -> tuple[Part, ...]:
    """Group questions by variant and metrics."""
    grouped: dict[tuple[str, tuple[str, ...]], tuple[Variant, list[PhotoTarget]]] = {}
    for target, lacking in missing:
        for variant, metrics in lacking:
            grouped.setdefault((variant.label, metrics), (variant, []))[1].append(target)
    return tuple(
        Part(variant, tuple(targets), metrics)
        for (_, metrics), (variant, targets) in grouped.items()
    )


def results(
    task: Task, plan: Plan, store: Store
) -> Iterator[tuple[PhotoTarget, Variant, ResultRow | None]]:
    """Yield every question of a task with every variant, and the row of the cell if it has one."""
    identity = load_task_model(task, "cpu").identity
    for targets in questions(task, identity, store.digests):
        found = find_rows(task, identity, targets, plan.variants_of(task), store)
        for target, cells in zip(targets, found, strict=True):
            for variant, _, row in cells:
                yield target, variant, row
