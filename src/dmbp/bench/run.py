"""Runs a plan: computes the cells that a store does not have yet, and writes them there.

    plan → questions → units → executor → rows → store

The driver makes units as the executor takes them and writes rows as they arrive. Whichever executor
computes them, the rows are the same.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from dmbp.bench.cluster import cluster
from dmbp.bench.executor import Executor, here
from dmbp.bench.left_out import LeftOut
from dmbp.bench.plan import Plan, Task
from dmbp.bench.processes import processes
from dmbp.bench.questions import question_count
from dmbp.bench.store import Store
from dmbp.bench.subject import Subject, subject_of, task_classifier
from dmbp.bench.tally import Tally
from dmbp.bench.unit import Choice, Unit, missing_units
from dmbp.models import Classifier


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; none of it changes a result.

    `devices` are those that have a process each; a single one is used by the process that runs. At
    `ray`, the address of a cluster, its devices are used instead.
    Of a `shard` (i, n), every n-th photo from the i-th is asked about. Cells that failed before are
    tried again where `retry`.
    """

    devices: tuple[str, ...] = ("cpu",)
    batch: int = 32
    shard: tuple[int, int] = (0, 1)
    retry: bool = False
    ray: str | None = None


Told = Callable[[Tally], None]


def run_plan(plan: Plan, store: Path, options: RunOptions, told: Told | None = None) -> Tally:
    """Compute what is missing; `told` is called after every batch."""
    plan = with_whole_paths(plan)
    load, executor = _executor(options)
    tally = Tally(cell_count(plan, options.shard))
    with closing(Store(store)) as results:
        left_out = LeftOut(plan)
        units = _units(plan, results, options, load=load, tally=tally, left_out=left_out)
        with closing(executor(units)) as batches:
            for rows in batches:
                results.add(rows)
                tally.count(rows)
                if told is not None:
                    told(tally)
    tally.left_out = left_out.count
    return tally


def what_is_left(plan: Plan, store: Path) -> Tally:
    """How much of a plan a store has; models are loaded to know which rows are theirs."""
    plan = with_whole_paths(plan)
    tally = Tally(cell_count(plan))
    load = partial(task_classifier, device="cpu")
    with closing(Store(store, reading=True)) as results:
        left_out = LeftOut(plan)
        for _ in _units(plan, results, RunOptions(), load=load, tally=tally, left_out=left_out):
            pass
    return tally


def cell_count(plan: Plan, shard: tuple[int, int] = (0, 1)) -> int:
    """How many cells a plan has."""
    return len(plan.variants) * sum(question_count(task, shard) for task in plan.tasks)


def with_whole_paths(plan: Plan) -> Plan:
    """A plan whose paths mean the same from any working directory."""
    return replace(plan, tasks=tuple(_whole(task) for task in plan.tasks))


def _whole(task: Task) -> Task:
    given = {name: getattr(task, name) for name in ("path", "weights", "classes")}
    return replace(task, **{k: path.absolute() for k, path in given.items() if path is not None})


Load = Callable[[Task], Classifier]


def _executor(options: RunOptions) -> tuple[Load, Executor]:
    """How the driver loads a model, and who computes."""
    if options.ray is not None:
        return partial(task_classifier, device="cpu"), partial(cluster, address=options.ray)
    if len(options.devices) == 1:  # with the model that the driver has loaded
        load = lru_cache(maxsize=1)(partial(task_classifier, device=options.devices[0]))
        return load, partial(here, load=load, device=options.devices[0])
    return partial(task_classifier, device="cpu"), partial(processes, devices=options.devices)


def _units(
    plan: Plan,
    store: Store,
    options: RunOptions,
    *,
    load: Load,
    tally: Tally,
    left_out: LeftOut,
) -> Iterator[Unit]:
    def subject(task: Task) -> Subject:
        return subject_of(load(task))

    choice = Choice(options.batch, options.shard, options.retry)
    return missing_units(
        plan, store, choice, subject_of=subject, kept=tally.keep, left_out=left_out
    )
