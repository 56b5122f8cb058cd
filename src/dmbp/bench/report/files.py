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

from dmbp.attribution import METHODS
from dmbp.bench.plan import Plan, Task, make_variant
from dmbp.bench.report.lines import RunningMean
from dmbp.bench.report.ranks import rankings
from dmbp.bench.row import CELL_COLUMNS, JSON_COLUMNS, Cell, ResultRow
from dmbp.bench.store import Store
from dmbp.bench.units import SkippedTasks, results
from dmbp.errors import InputError, OutputError
from dmbp.files import reason, shown
from dmbp.metric_table import curve_fractions
from dmbp.render import encode_figure, write_all_or_none
from dmbp.render.benchmark import MethodMark, TaskPlot, draw_benchmark
from dmbp.render.critical_difference import RankPlot, draw_ranks

ROWS_PER_GROUP = 5000
"""Rows in a group of a Parquet file, which is in memory at once."""


def export(store: Store, path: Path, *, plan: Plan | None = None, curves: bool = False) -> int:
    """Write every row of a store to a file.

    Args:
        store: The results.
        path: The file, .csv or .parquet.
        plan: A plan whose labels are written; methods that it does not have keep their usual one.
        curves: Whether to write the points of all curves in place of the scores, a line for each.

    Returns:
        How many rows were written.

    Raises:
        InputError: If the file has another suffix, or pyarrow is not installed.
        OutputError: If the file cannot be written.
    """
    if path.suffix not in WRITERS:
        kinds = " or ".join(WRITERS)
        raise InputError(f"results are exported to a {kinds} file, not {shown(path)}")
    metrics = [] if curves else store.metrics()
    labels = MethodLabels(plan)
    lines = (
        curve_lines(store.rows(), labels) if curves else result_lines(store.rows(), metrics, labels)
    )
    columns = CURVE_TYPES if curves else row_types(metrics)
    try:
        return WRITERS[path.suffix](path, columns, lines)
    except OSError as error:
        raise OutputError(f"cannot write {shown(path)}: {reason(error)}") from error


class MethodLabels:
    """What the methods of rows are called: as in a plan, else as in the table of methods.

    Args:
        plan: The plan, or None.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self._labels: dict[tuple[str, str], str] = {}
        for name, spec in METHODS.items():
            self._labels.setdefault(make_variant(name, {}).key, spec.short)
        if plan is not None:
            self._labels |= {variant.key: variant.label for variant in plan.variants}

    def of(self, cell: Cell) -> str:
        """Return the label of a cell's method."""
        return self.find(cell.method, json.dumps(dict(cell.settings), sort_keys=True))

    def find(self, method: str, settings: str) -> str:
        """Return the label of a method with settings, as JSON; unknown ones are written out."""
        if (method, settings) in self._labels:
            return self._labels[method, settings]
        named = json.loads(settings)
        short = METHODS[method].short if method in METHODS else method
        written = ", ".join(f"{name}={value}" for name, value in named.items())
        return f"{short}, {written}" if written else short


ColumnTypes = Mapping[str, type]
"""The columns of a file, and whether each holds text or numbers."""

_NAMED: ColumnTypes = {**dict.fromkeys(CELL_COLUMNS, str), "label": str}
CURVE_TYPES: ColumnTypes = {**_NAMED, "metric": str, "step": int, "fraction": float, "value": float}


def row_types(metrics: Sequence[str]) -> ColumnTypes:
    """Return the columns of a line for each row, given the names of the metrics."""
    return {**_NAMED, **dict.fromkeys([*metrics, "seconds"], float), "failure": str}


def line_columns(metrics: Sequence[str]) -> list[str]:
    """Return the names of the columns of a line, given the names of the metrics."""
    return list(row_types(metrics))


def result_lines(
    rows: Iterable[ResultRow], metrics: Sequence[str], labels: MethodLabels
) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row, in the order of `line_columns`."""
    for row in rows:
        scores = [row.scores.get(metric) for metric in metrics]
        yield (*_names(row, labels), *scores, row.seconds, row.failure)


def curve_lines(rows: Iterable[ResultRow], labels: MethodLabels) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each point of each curve, in the order of `CURVE_TYPES`."""
    for row in rows:
        names = _names(row, labels)
        for metric, curve in sorted(row.curves.items()):
            fractions = curve_fractions(metric, len(curve))
            for step, (fraction, value) in enumerate(zip(fractions, curve, strict=True)):
                yield (*names, metric, step, fraction, value)


def _names(row: ResultRow, labels: MethodLabels) -> list[str]:
    return [
        *(_text(name, getattr(row.cell, name)) for name in CELL_COLUMNS),
        labels.of(row.cell),
    ]


def _text(column: str, value: Any) -> str:
    return json.dumps(value, sort_keys=True) if column in JSON_COLUMNS else value


def _write_csv(path: Path, columns: ColumnTypes, lines: Iterable[tuple[Any, ...]]) -> int:
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for line in lines:
            writer.writerow(line)
            count += 1
    return count


def _write_parquet(path: Path, columns: ColumnTypes, lines: Iterable[tuple[Any, ...]]) -> int:
    arrow, parquet = _import_pyarrow()
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    schema = arrow.schema({name: kinds[kind] for name, kind in columns.items()})
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        remaining = iter(lines)
        while group := list(islice(remaining, ROWS_PER_GROUP)):
            values = [list(column) for column in zip(*group, strict=True)]
            writer.write_table(arrow.table(values, schema=schema))
            count += len(group)
    return count


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            "Parquet files need pyarrow: pip install 'dmbp[parquet]', or export to .csv"
        ) from error


Writer = Callable[[Path, ColumnTypes, Iterable[tuple[Any, ...]]], int]
"""Writes lines with these columns to a file and returns how many."""

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


def plot_ranks(plan: Plan, store: Path, out: Path) -> None:
    """Draw the critical differences of a plan's methods, over all tasks and metrics.

    Args:
        plan: The plan.
        store: The file of results.
        out: The picture to write, .png, .svg or .pdf.

    Raises:
        InputError: If no line has a score of every method, or the file has another suffix.
    """
    ours = frozenset(v.label for v in plan.variants if v.method.startswith("dmbp"))
    overall = rankings(plan, store)[0]
    title = f"Mean rank over {overall.blocks} lines, each a task and a metric"
    drawn = draw_ranks([RankPlot(title, overall.ranks, overall.critical, ours)])
    write_all_or_none({out: encode_figure(drawn, out.suffix)})


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
