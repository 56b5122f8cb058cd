"""The results of a benchmark as data frames.

results = dmbp.bench.read("dmbp-bench.sqlite")
results.rows.groupby("method").insertion.mean()
results.curves.groupby(["metric", "method", "fraction"]).value.mean()
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmbp.bench.report.files import MethodLabels, line_columns, result_lines
from dmbp.bench.row import ResultRow
from dmbp.bench.store import Store
from dmbp.errors import InputError
from dmbp.files import check_file, shown
from dmbp.metric_table import curve_fractions
from dmbp.workflows.frames import Library, make_frame

NAMES = ("dataset", "image", "target", "model", "method", "settings", "label")
"""The columns of a row that its curves have as well."""

CURVE_COLUMNS = (*NAMES, "metric", "step", "fraction", "value")


@dataclass(frozen=True)
class BenchFrames:
    """The results of a benchmark as two data frames.

    Attributes:
        rows: A row for each result, with the columns of `dmbp bench export`: what was explained and
            how, a column for each metric, the seconds, and why it failed, if it did.
        curves: A row for each point of each curve: whose it is, the metric, the step, the fraction
            of pixels, and the probability there.
    """

    rows: Any
    curves: Any


def read(path: str | Path, *, library: Library = "pandas") -> BenchFrames:
    """Read the results of a benchmark as data frames.

    Args:
        path: The file of results that `dmbp bench run` wrote.
        library: "pandas" or "polars".

    Returns:
        The rows, and the points of their curves.

    Raises:
        InputError: If there is no such file, it is none of a benchmark, or the library is not
            installed.
    """
    file = Path(path)
    check_file(file, what="file of results", error=InputError, may_be_empty=True)
    if file.suffix in (".csv", ".parquet"):
        raise InputError(
            f"{shown(file)} was exported: read it with pandas, or give the file that `dmbp bench "
            "run` wrote"
        )
    with closing(Store(file, read_only=True)) as store:
        metrics = store.metrics()
        columns = line_columns(metrics)
        found = list(store.rows())
    lines = [
        dict(zip(columns, line, strict=True))
        for line in result_lines(found, metrics, MethodLabels())
    ]
    points = [point for row, line in zip(found, lines, strict=True) for point in _points(row, line)]
    return BenchFrames(
        make_frame(lines, library=library, columns=columns),
        make_frame(points, library=library, columns=CURVE_COLUMNS),
    )


def _points(row: ResultRow, line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the points of a row's curves."""
    names = {name: line[name] for name in NAMES}
    return [
        {
            **names,
            "metric": metric,
            "step": step,
            "fraction": fraction,
            "value": value,
        }
        for metric, curve in row.curves.items()
        for step, (fraction, value) in enumerate(
            zip(curve_fractions(metric, len(curve)), curve, strict=True)
        )
    ]
