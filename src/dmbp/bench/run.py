"""Runs a plan: computes the cells that a store does not have yet, and writes them there."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dmbp.bench.plan import Plan, Task
from dmbp.bench.questions import questions, task_classifier, weights_digest
from dmbp.bench.store import Store
from dmbp.bench.work import Job, Worker


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; none of it changes a result.

    Of a `shard` (i, n), every n-th photo from the i-th is asked about. Cells that failed before are
    tried again where `retry`.
    """

    device: str = "cpu"
    batch: int = 32
    shard: tuple[int, int] = (0, 1)
    retry: bool = False


@dataclass
class Tally:
    """What a run has done so far."""

    done: int = 0
    failed: int = 0
    kept: int = 0


Told = Callable[[Task, str, Tally], None]


def run_plan(plan: Plan, store: Path, options: RunOptions, told: Told | None = None) -> Tally:
    """Compute what is missing; `told` is called after every batch."""
    tally = Tally()
    results = Store(store)
    try:
        for task in plan.tasks:
            classifier = task_classifier(task, options.device)
            worker = Worker(task, classifier, weights_digest(classifier))
            for asked in questions(task, classifier, results, shard=options.shard):
                for variant in plan.variants:
                    jobs = [worker.job(one, variant.method, variant.settings) for one in asked]
                    for batch in _missing(jobs, results, options, tally):
                        rows = worker.rows(batch)
                        results.add(rows)
                        failed = sum(row.failure is not None for row in rows)
                        tally.failed += failed
                        tally.done += len(rows) - failed
                        if told is not None:
                            told(task, variant.label, tally)
    finally:
        results.close()
    return tally


def _missing(
    jobs: list[Job], store: Store, options: RunOptions, tally: Tally
) -> Iterator[list[Job]]:
    """The jobs that have no row yet, in batches."""
    there = store.done((job.cell.key for job in jobs), failed=not options.retry)
    tally.kept += len(there)
    left = [job for job in jobs if job.cell.key not in there]
    for start in range(0, len(left), options.batch):
        yield left[start : start + options.batch]
