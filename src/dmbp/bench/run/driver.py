"""Runs a plan: computes the cells that a store does not have yet, and writes their rows to it.

    plan → questions → units → executor → rows → store

The driver makes units as the executor takes them, and writes rows as they arrive. The rows do not
depend on the executor.
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

from dmbp.bench.identity import load_task_model
from dmbp.bench.map_folder import folder_beside
from dmbp.bench.plan import Plan, Task
from dmbp.bench.run.local import run_in_process, run_in_processes
from dmbp.bench.run.pool import ResultStream
from dmbp.bench.run.ray_cluster import run_on_cluster
from dmbp.bench.run.unit_runner import LoadModel
from dmbp.bench.store import ResultRow, Store
from dmbp.bench.units import (
    WHOLE,
    Pending,
    Shard,
    SkippedTasks,
    Unit,
    missing_units,
    question_count,
)

Executor = Callable[[Iterator[Unit]], ResultStream]
"""Computes units in this process, in several processes or on a cluster."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run, which change scores only through rounding.

    Args:
        devices: The device of each worker process; if there is one, this process uses it itself.
        batch: Questions computed at once.
        shard: (i, n) takes every n-th photo, starting at the i-th, counted from 0.
        retry: Whether to try cells again that failed before.
        ray: The address of a Ray cluster, whose devices are used instead of `devices`.
        keep_maps: Whether maps are kept in a folder beside the store, and read from there.
    """

    devices: tuple[str, ...] = ("cpu",)
    batch: int = 32
    shard: Shard = WHOLE
    retry: bool = False
    ray: str | None = None
    keep_maps: bool = False


@dataclass
class Tally:
    """Counts of a run's cells.

    Of all `total` cells, this run computed `done`, and `failed` to compute others; `kept` had a row
    before the run, of which `failed_before` are failures. `left_out` counts tasks that cannot run.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    kept: int = 0
    failed_before: int = 0
    left_out: int = 0

    def count(self, rows: Sequence[ResultRow]) -> None:
        """Count the rows of cells that this run has tried."""
        failed = sum(row.failure is not None for row in rows)
        self.failed += failed
        self.done += len(rows) - failed

    def keep(self, count: int, failed: int) -> None:
        """Count cells that had a row before the run, and those of them that had failed."""
        self.kept += count
        self.failed_before += failed

    @property
    def left(self) -> int:
        """The number of cells that are still to be tried."""
        return self.total - self.done - self.failed - self.kept

    def pace(self, seconds: float) -> str:
        """Return the run's cells per second, its remaining time and its failures as text.

        Cells that had a row before the run do not count.
        """
        rate = (self.done + self.failed) / max(seconds, 1e-9)
        left = f", {_duration(self.left / rate)} left" if rate > 0 else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{rate:.3g} per second{left}{failed}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def run_plan(
    plan: Plan,
    store: Path,
    options: RunOptions,
    on_progress: Callable[[Tally], None] | None = None,
) -> Tally:
    """Compute the cells of a plan that a store does not have yet.

    Args:
        plan: The plan.
        store: The file of results; it is created if it does not exist.
        options: How to run.
        on_progress: Called after every batch of rows is written.

    Returns:
        How many cells were computed, failed, or had a row before.

    Raises:
        DMBPError: If no task can run, workers do not start, or the store cannot be written.
    """
    plan = with_absolute_paths(plan)
    load, execute = _executor(options)
    tally = Tally(cell_count(plan, options.shard))
    with closing(Store(store)) as results:
        skipped = SkippedTasks(plan)
        pending: Pending = {}
        units = missing_units(
            plan,
            results,
            identify=lambda task: load(task).identity,
            skipped=skipped,
            on_existing=tally.keep,
            batch=options.batch,
            shard=options.shard,
            retry=options.retry,
            pending=pending,
            maps=folder_beside(store.absolute()) if options.keep_maps else None,
        )
        with closing(execute(units)) as batches:
            for rows in batches:
                results.add(rows)
                for row in rows:
                    pending.pop(row.cell.key, None)
                tally.count(rows)
                if on_progress is not None:
                    on_progress(tally)
    tally.left_out = skipped.count
    return tally


def count_missing(plan: Plan, store: Path) -> Tally:
    """Return how much of a plan a store has; models are loaded to compute the cells' keys."""
    plan = with_absolute_paths(plan)
    tally = Tally(cell_count(plan))
    with closing(Store(store, read_only=True)) as results:
        units = missing_units(
            plan,
            results,
            identify=lambda task: load_task_model(task, "cpu").identity,
            skipped=SkippedTasks(plan),
            on_existing=tally.keep,
        )
        for _ in units:
            pass
    return tally


def cell_count(plan: Plan, shard: Shard = WHOLE) -> int:
    """Return how many cells a plan has; tasks and variants that are alike count once."""
    return sum(
        len(plan.computed_variants(task)) * question_count(task, shard)
        for task in plan.computed_tasks
    )


def with_absolute_paths(plan: Plan) -> Plan:
    """Return a plan whose paths are absolute, so that workers can run in any directory."""
    return replace(plan, tasks=tuple(_with_absolute_paths(task) for task in plan.tasks))


def _with_absolute_paths(task: Task) -> Task:
    paths = {name: getattr(task, name) for name in ("path", "weights", "classes")}
    return replace(task, **{k: path.absolute() for k, path in paths.items() if path is not None})


def _executor(options: RunOptions) -> tuple[LoadModel, Executor]:
    """Return the function with which the driver loads a model, and the executor."""
    load = partial(load_task_model, device="cpu")
    if options.ray is not None:
        return load, partial(run_on_cluster, address=options.ray)
    if len(options.devices) == 1:  # driver and worker share one loaded model
        device = options.devices[0]
        shared = lru_cache(maxsize=1)(partial(load_task_model, device=device))
        return shared, partial(run_in_process, load=shared, device=device)
    return load, partial(run_in_processes, devices=options.devices)


SECONDS_BETWEEN_LINES = 60.0
"""Seconds between two lines of progress if the output is not a terminal."""


@contextmanager
def progress(console: Console, *, quiet: bool) -> Generator[Callable[[Tally], None]]:
    """Show a run's progress: a bar on a terminal, otherwise a line every minute.

    Args:
        console: Where to print.
        quiet: Whether to print nothing.

    Returns:
        A context manager whose value is a function to call with each new tally.
    """
    started = time.monotonic()
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    has_bar = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not has_bar) as bar:
        task = bar.add_task("loading", total=None)
        last = -math.inf  # the first line is printed at once

        def show(tally: Tally) -> None:
            nonlocal last
            now = time.monotonic()
            pace = tally.pace(now - started)
            tried = tally.total - tally.left
            bar.update(task, total=tally.total, completed=tried, description=pace)
            if not quiet and not has_bar and now - last >= SECONDS_BETWEEN_LINES:
                last = now
                console.print(f"{tried} of {tally.total}: {pace}")

        yield show


def summary(tally: Tally, store: Path, command: str) -> str:
    """Return a summary of a run, and the commands that show and retry what failed.

    Args:
        tally: The run's tally.
        store: The file of results.
        command: The command line of the run.
    """
    text = f"{tally.done} computed, {tally.kept} already stored, {tally.failed} failed"
    if tally.failed_before:
        text += f"; of those already stored {tally.failed_before} failed before"
    if tally.left_out:
        text += f"; {tally.left_out} of the plan's tasks left out"
    if not tally.failed and not tally.failed_before:
        return text
    return f"{text}\nwhat failed: dmbp bench status --store {store}\nagain: {command} --retry"
