"""Units of work: a few questions to every method that has not answered them yet.

A unit is what an executor hands out: small, so that it can be lost and tried again, and all that
concerns some photos, so that they are decoded once. Units are made as they are asked for; only
those in somebody's hands are in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from dmbp.bench.cell import Cell
from dmbp.bench.left_out import LeftOut
from dmbp.bench.plan import Plan, Task
from dmbp.bench.questions import Asked, Shard, questions
from dmbp.bench.store import Store
from dmbp.bench.subject import Subject


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
    subject: Subject
    parts: tuple[Part, ...]

    def rest(self) -> "Unit":
        """What is left when the first part is done."""
        return replace(self, parts=self.parts[1:])

    def paths(self) -> set[Path]:
        """The photos it needs."""
        return {job.asked.sample.path for part in self.parts for job in part}


@dataclass(frozen=True)
class Choice:
    """Which cells of a plan are asked for: of a shard, at most `batch` questions to a unit.

    Cells that failed before are among them where `retry`.
    """

    batch: int = 32
    shard: Shard = (0, 1)
    retry: bool = False


def missing_units(
    plan: Plan,
    store: Store,
    choice: Choice,
    *,
    subject_of: Callable[[Task], Subject],
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


def jobs_of(asked: Asked, plan: Plan, *, task: Task, subject: Subject) -> list[Job]:
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


def _scoring(asked: Asked, task: Task, subject: Subject) -> dict[str, object]:
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
