"""What a store has of a plan: for every question of a task, each variant's row or none.

The cells are made as a run makes them, so a row counts where the photo, the weights, the settings
and the scoring are the plan's own, whatever else the store holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dmbp.bench.plan import Plan, Task
from dmbp.bench.questions import Asked, questions
from dmbp.bench.store import Row, Store
from dmbp.bench.subject import subject_of, task_classifier
from dmbp.bench.unit import jobs_of
from dmbp.bench.variant import Variant


@dataclass(frozen=True)
class Answer:
    """A question to a variant, and the row that came of it, if it was tried."""

    asked: Asked
    variant: Variant
    row: Row | None


def answers(task: Task, plan: Plan, store: Store) -> Iterator[Answer]:
    """Every question of a task to every variant of its plan."""
    subject = subject_of(task_classifier(task, "cpu"))
    for asked in questions(task, subject, store):
        for one in asked:
            jobs = jobs_of(one, plan, task=task, subject=subject)
            rows = store.rows_of(job.cell.key for job in jobs)
            for job, variant in zip(jobs, plan.variants, strict=True):
                yield Answer(one, variant, rows.get(job.cell.key))
