"""Results as files for other programs: a line for each row, with a column for each metric.

Rows are written as they are read, a few thousand at a time, so that memory does not limit the size
of a store.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from dmbp.bench.store import CELL_COLUMNS, JSON_COLUMNS, ResultRow, Store
from dmbp.errors import InputError, OutputError

ROWS_A_GROUP = 5000
"""Rows of a Parquet file that are in memory at once."""


def export(store: Store, path: Path) -> int:
    """Write every row of a store to a file.

    Args:
        store: The results.
        path: The file, .csv or .parquet.

    Returns:
        How many rows were written.

    Raises:
        InputError: The file has another ending, or pyarrow is not installed.
        OutputError: The file cannot be written.
    """
    if path.suffix not in WRITERS:
        kinds = " or ".join(WRITERS)
        raise InputError(f"results are exported to a {kinds} file, not {path}")
    metrics = store.metrics()
    try:
        return WRITERS[path.suffix](path, metrics, _lines(store.rows(), metrics))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _lines(rows: Iterable[ResultRow], metrics: Sequence[str]) -> Iterator[tuple[Any, ...]]:
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
        writer.writerow([*CELL_COLUMNS, *metrics, "seconds", "failure"])
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
        while group := list(islice(remaining, ROWS_A_GROUP)):
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

WRITERS: Mapping[str, Writer] = {".csv": _write_csv, ".parquet": _write_parquet}
