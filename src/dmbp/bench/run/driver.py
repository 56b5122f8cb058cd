"""What a run has done so far, of how many cells, and how fast.

What a run says of itself: a line that moves on a terminal, a line now and then in a log.

Runs a plan: computes the cells that a store does not have yet, and writes them there.

    plan → questions → units → executor → rows → store

The driver makes units as the executor takes them and writes rows as they arrive. Whichever executor
computes them, the rows are the same.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from dmbp.bench.identity import ModelIdentity, subject_of, task_classifier
from dmbp.bench.plan import Plan, Task
from dmbp.bench.questions import question_count
from dmbp.bench.run.local import Executor, processes, run_in_process
from dmbp.bench.run.ray_cluster import cluster
from dmbp.bench.store import ResultRow, Store
from dmbp.bench.units import LeftOut, Unit, UnitSelection, missing_units
from dmbp.models import Classifier


@dataclass
class Tally:
    """Cells of a run: computed, failed, there already, of a total; a few numbers for any run.

    `failed_before` are those there already that failed when they were tried; `left_out` is how many
    tasks could not be asked.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    kept: int = 0
    failed_before: int = 0
    left_out: int = 0

    def count(self, rows: Sequence[ResultRow]) -> None:
        """Count what has been computed."""
        failed = sum(row.failure is not None for row in rows)
        self.failed += failed
        self.done += len(rows) - failed

    def keep(self, count: int, failed: int) -> None:
        """Count what was there already, and what of it had failed."""
        self.kept += count
        self.failed_before += failed

    @property
    def left(self) -> int:
        """Cells that are still to be tried."""
        return self.total - self.done - self.failed - self.kept

    def pace(self, seconds: float) -> str:
        """How fast it goes after some seconds, how long the rest takes at that, what failed.

        What was there already took no time and says nothing of the rest.
        """
        rate = (self.done + self.failed) / max(seconds, 1e-9)
        left = f", {_duration(self.left / rate)} left" if rate > 0 else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{rate:.3g} a second{left}{failed}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


SECONDS_BETWEEN_LINES = 60.0
"""In a log, where a line cannot be drawn over the last."""


@contextmanager
def progress(console: Console, *, quiet: bool) -> Generator[Callable[[Tally], None]]:
    """What to call with a run's tally as it grows."""
    started = time.monotonic()
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        line = bar.add_task("loading", total=None)
        last = -math.inf  # the first line at once

        def told(tally: Tally) -> None:
            nonlocal last
            now = time.monotonic()
            pace = tally.pace(now - started)
            bar.update(
                line, total=tally.total, completed=tally.total - tally.left, description=pace
            )
            if not quiet and not shown and now - last >= SECONDS_BETWEEN_LINES:
                last = now
                console.print(f"{tally.total - tally.left} of {tally.total}: {pace}")

        yield told


def summary(tally: Tally, store: Path, command: str) -> str:
    """What came of a run, and what to do about what failed; `command` is the one that ran."""
    text = f"{tally.done} computed, {tally.kept} there already, {tally.failed} failed"
    if tally.failed_before:
        text += f"; of those there already {tally.failed_before} failed before"
    if tally.left_out:
        text += f"; {tally.left_out} of the plan's tasks left out"
    if not tally.failed and not tally.failed_before:
        return text
    return f"{text}\nwhat failed: dmbp bench status --store {store}\nagain: {command} --retry"


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
        return load, partial(run_in_process, load=load, device=options.devices[0])
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
    def subject(task: Task) -> ModelIdentity:
        return subject_of(load(task))

    choice = UnitSelection(options.batch, options.shard, options.retry)
    return missing_units(
        plan, store, choice, subject_of=subject, kept=tally.keep, left_out=left_out
    )
