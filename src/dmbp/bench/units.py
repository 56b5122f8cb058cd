"""Tasks of a plan that cannot be asked, because of their model or labels: the others go on.

Units of work: a few questions to every method that has not answered them yet.

A unit is what an executor hands out: small, so that it can be lost and tried again, and all that
concerns some photos, so that they are decoded once. Units are made as they are asked for; only
those in somebody's hands are in memory.

What a store has of a plan: for every question of a task, each variant's row or none.

The cells are made as a run makes them, so a row counts where the photo, the weights, the settings
and the scoring are the plan's own, whatever else the store holds.
"""

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from dmbp.bench.identity import ModelIdentity, subject_of, task_classifier
from dmbp.bench.plan import Plan, Task, Variant
from dmbp.bench.questions import Asked, Shard, questions
from dmbp.bench.store import Cell, ResultRow, Store
from dmbp.errors import DMBPError, one_line


class LeftOut:
    """Counts a plan's tasks that cannot be asked; where it is all of them, that is an error."""

    def __init__(self, plan: Plan) -> None:
        self.count = 0
        self._tasks = len(plan.tasks)

    @contextmanager
    def unless_asked(self, task: Task) -> Generator[None]:
        """Ask a task inside; if it cannot be, that is noted."""
        try:
            yield
        except DMBPError as error:
            self.count += 1
            if self.count == self._tasks:
                raise
            warnings.warn(f"the task {task.name!r} is left out: {one_line(error)}", stacklevel=2)


@dataclass(frozen=True)
class Job:
    """One question to one method."""

    asked: Asked
    cell: Cell


Part = tuple[Job, ...]
"""Jobs of one method under one setting."""


@dataclass(frozen=True)
class Unit:
    """Jobs on some photos, a part for each method; parts are done in their order."""

    task: Task
    subject: ModelIdentity
    parts: tuple[Part, ...]

    def rest(self) -> "Unit":
        """What is left when the first part is done."""
        return replace(self, parts=self.parts[1:])

    def paths(self) -> set[Path]:
        """The photos it needs."""
        return {job.asked.sample.path for part in self.parts for job in part}


@dataclass(frozen=True)
class UnitSelection:
    """Which cells of a plan are asked for: of a shard, at most `batch` questions to a unit.

    Cells that failed before are among them where `retry`.
    """

    batch: int = 32
    shard: Shard = (0, 1)
    retry: bool = False


def missing_units(
    plan: Plan,
    store: Store,
    choice: UnitSelection,
    *,
    subject_of: Callable[[Task], ModelIdentity],
    kept: Callable[[int, int], None],
    left_out: LeftOut,
) -> Iterator[Unit]:
    """The cells that have no row yet, task by task.

    `kept` is told how many have one, and how many of those failed; tasks may be `left_out`.
    """
    for task in plan.tasks:
        with left_out.unless_asked(task):
            subject = subject_of(task)
            for asked in questions(task, subject, store, shard=choice.shard):
                jobs = [jobs_of(one, plan, task=task, subject=subject) for one in asked]
                keys = [job.cell.key for several in jobs for job in several]
                there = store.done(keys, failed=not choice.retry)
                succeeded = store.done(keys, failed=False)
                kept(sum(key in there for key in keys), len(there - succeeded))
                for parts in _parts(jobs, there, choice.batch):
                    yield Unit(task, subject, parts)


def jobs_of(asked: Asked, plan: Plan, *, task: Task, subject: ModelIdentity) -> list[Job]:
    """A question to every variant of a plan, in their order."""
    scoring = _scoring(asked, task, subject)
    cell = Cell(
        dataset=task.dataset,
        image=asked.sample.name,
        photo=asked.photo,
        target=str(asked.index),
        model=task.model,
        weights=subject.weights,
        method="",
        settings={},
        scoring=scoring,
    )
    return [
        Job(asked, replace(cell, method=variant.method, settings=dict(variant.settings)))
        for variant in plan.variants
    ]


def _scoring(asked: Asked, task: Task, subject: ModelIdentity) -> dict[str, object]:
    return {
        "metrics": sorted(task.metrics),
        "steps": task.steps,
        "activation": subject.activation,
        "others": list(asked.others) if "cIM" in task.metrics else [],
        "seen": list(astuple(subject.preprocessing)),
    }


def _parts(jobs: list[list[Job]], there: set[str], batch: int) -> Iterator[tuple[Part, ...]]:
    """Questions with something missing, `batch` at a time; of each variant what is missing."""
    left = [{job.cell.key: job for job in several if job.cell.key not in there} for several in jobs]
    open_questions = [list(several.values()) for several in left if several]
    for start in range(0, len(open_questions), batch):
        yield _by_variant(open_questions[start : start + batch])


def _by_variant(jobs: Sequence[Sequence[Job]]) -> tuple[Part, ...]:
    found: dict[tuple[str, str], list[Job]] = {}
    for several in jobs:
        for job in several:
            found.setdefault(job.cell.variant, []).append(job)
    return tuple(tuple(part) for part in found.values())


@dataclass(frozen=True)
class CellResult:
    """A question to a variant, and the row that came of it, if it was tried."""

    asked: Asked
    variant: Variant
    row: ResultRow | None


def answers(task: Task, plan: Plan, store: Store) -> Iterator[CellResult]:
    """Every question of a task to every variant of its plan."""
    subject = subject_of(task_classifier(task, "cpu"))
    for asked in questions(task, subject, store):
        for one in asked:
            jobs = jobs_of(one, plan, task=task, subject=subject)
            rows = store.rows_of(job.cell.key for job in jobs)
            for job, variant in zip(jobs, plan.variants, strict=True):
                yield CellResult(one, variant, rows.get(job.cell.key))
