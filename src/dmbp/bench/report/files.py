"""Writes results to files: every row for other programs, and a plot of a plan.

`export` writes a line for each row, with a column for each metric. Rows are written as they are
read, at most a few thousand at a time, so that a store may be larger than memory. `plot` draws the
curves of each method, and its score against the seconds per map.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from dmbp.bench.plan import Plan, Task
from dmbp.bench.report.lines import RunningMean
from dmbp.bench.row import CELL_COLUMNS, JSON_COLUMNS, ResultRow
from dmbp.bench.store import Store
from dmbp.bench.units import SkippedTasks, results
from dmbp.errors import InputError, OutputError
from dmbp.files import reason, shown
from dmbp.render import encode_figure, write_all_or_none
from dmbp.render.benchmark import MethodMark, TaskPlot, draw_benchmark

ROWS_PER_GROUP = 5000
"""Rows in a group of a Parquet file, which is in memory at once."""


def export(store: Store, path: Path) -> int:
    """Write every row of a store to a file.

    Args:
        store: The results.
        path: The file, .csv or .parquet.

    Returns:
        How many rows were written.

    Raises:
        InputError: If the file has another suffix, or pyarrow is not installed.
        OutputError: If the file cannot be written.
    """
    if path.suffix not in WRITERS:
        kinds = " or ".join(WRITERS)
        raise InputError(f"results are exported to a {kinds} file, not {shown(path)}")
    metrics = store.metrics()
    try:
        return WRITERS[path.suffix](path, metrics, result_lines(store.rows(), metrics))
    except OSError as error:
        raise OutputError(f"cannot write {shown(path)}: {reason(error)}") from error


def line_columns(metrics: Sequence[str]) -> list[str]:
    """Return the columns of a line, given the names of the metrics."""
    return [*CELL_COLUMNS, *metrics, "seconds", "failure"]


def result_lines(rows: Iterable[ResultRow], metrics: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row, in the order of `line_columns`."""
    for row in rows:
        values = [_text(name, getattr(row.cell, name)) for name in CELL_COLUMNS]
        scores = [row.scores.get(metric) for metric in metrics]
        yield (*values, *scores, row.seconds, row.failure)


def _text(column: str, value: Any) -> str:
    return json.dumps(value, sort_keys=True) if column in JSON_COLUMNS else value


def _write_csv(path: Path, metrics: Sequence[str], lines: Iterable[tuple[Any, ...]]) -> int:
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(line_columns(metrics))
        for line in lines:
            writer.writerow(line)
            count += 1
    return count


def _write_parquet(path: Path, metrics: Sequence[str], lines: Iterable[tuple[Any, ...]]) -> int:
    arrow, parquet = _import_pyarrow()
    text, number = arrow.string(), arrow.float64()
    types = dict.fromkeys(CELL_COLUMNS, text) | dict.fromkeys(metrics, number)
    schema = arrow.schema({**types, "seconds": number, "failure": text})
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        remaining = iter(lines)
        while group := list(islice(remaining, ROWS_PER_GROUP)):
            columns = [list(column) for column in zip(*group, strict=True)]
            writer.write_table(arrow.table(columns, schema=schema))
            count += len(group)
    return count


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            "Parquet files need pyarrow: pip install 'dmbp[parquet]', or export to .csv"
        ) from error


Writer = Callable[[Path, Sequence[str], Iterable[tuple[Any, ...]]], int]
"""Writes lines to a file and returns how many, given the names of the metrics."""

WRITERS: Mapping[str, Writer] = {".csv": _write_csv, ".parquet": _write_parquet}


@dataclass
class VariantMeans:
    """A variant's running means: of its score, its seconds, and each point of its curve."""

    score: RunningMean = field(default_factory=RunningMean)
    seconds: RunningMean = field(default_factory=RunningMean)
    curve: list[RunningMean] = field(default_factory=list)

    def add(self, row: ResultRow, metric: str) -> None:
        """Add a row that has a score for the metric."""
        self.score.add(row.scores[metric])
        self.seconds.add(row.seconds or 0.0)
        if points := row.curves.get(metric):
            self.curve = self.curve or [RunningMean() for _ in points]
            for mean, value in zip(self.curve, points, strict=True):
                mean.add(value)


def plot(plan: Plan, store: Path, out: Path) -> None:
    """Draw a plan's results into a file.

    Args:
        plan: The plan.
        store: The file of results.
        out: The picture to write, .png, .svg or .pdf.

    Raises:
        InputError: If there is nothing to draw, or the file has another suffix.
    """
    skipped, plots = SkippedTasks(plan), list[TaskPlot]()
    with closing(Store(store, read_only=True)) as rows:
        for task in plan.tasks:
            with skipped.skip_on_error(task):
                plots.append(task_plot(task, plan, rows))
    drawn = [task for task in plots if task.marks]
    if not drawn:
        raise InputError(
            f"{store} has no scores of this plan by the first metric of a task: `dmbp bench run` "
            "computes what is missing, `dmbp bench table` says what has none"
        )
    write_all_or_none({out: encode_figure(draw_benchmark(drawn), out.suffix)})


def task_plot(task: Task, plan: Plan, store: Store) -> TaskPlot:
    """Return a task's part of the plot: the results of its first metric by variant."""
    metric = task.metrics[0]
    photos: set[str] = set()
    means = {variant.label: VariantMeans() for variant in plan.variants}
    for target, variant, row in results(task, plan, store):
        if row is not None and metric in row.scores:
            photos.add(target.sample.name)
            means[variant.label].add(row, metric)
    ours = {variant.label for variant in plan.variants if variant.method.startswith("dmbp")}
    marks = [
        _mark(label, variant_means, is_ours=label in ours)
        for label, variant_means in means.items()
        if variant_means.score.count
    ]
    return TaskPlot(task.name, metric, len(photos), marks)


def _mark(label: str, means: VariantMeans, *, is_ours: bool) -> MethodMark:
    curve: Sequence[float] = [point.mean for point in means.curve]
    errors = [point.error for point in means.curve]
    score, seconds = means.score, means.seconds.mean
    return MethodMark(label, score.mean, score.error, seconds, curve, errors, is_ours)
