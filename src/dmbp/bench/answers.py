"""What a store has of a plan: for every question of a task, each variant's row or none.

The cells are made as a run makes them, so a row counts where the photo, the weights, the settings
and the scoring are the plan's own, whatever else the store holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dmbp.bench.plan import Plan, Task
from dmbp.bench.questions import Asked, questions, task_classifier, weights_digest
from dmbp.bench.store import Row, Store
from dmbp.bench.variant import Variant
from dmbp.bench.work import Worker


@dataclass(frozen=True)
class Answer:
    """A question to a variant, and the row that came of it, if it was tried."""

    asked: Asked
    variant: Variant
    row: Row | None


def answers(task: Task, plan: Plan, store: Store) -> Iterator[Answer]:
    """Every question of a task to every variant of its plan."""
    classifier = task_classifier(task, "cpu")
    worker = Worker(task, classifier, weights_digest(classifier))
    for asked in questions(task, classifier, store):
        for variant in plan.variants:
            jobs = [worker.job(one, variant.method, variant.settings) for one in asked]
            rows = store.rows_of(job.cell.key for job in jobs)
            for job in jobs:
                yield Answer(job.asked, variant, rows.get(job.cell.key))
