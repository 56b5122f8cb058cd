"""Results as files that other programs read: a line for each row, its scores by metric.

Rows are written as they are read, a few thousand at a time, so that a store of any size fits.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from dmbp.bench.store import ResultRow, Store
from dmbp.errors import InputError, OutputError

COLUMNS = ("dataset", "image", "photo", "target", "model", "weights", "method")

TEXTS = ("settings", "scoring")
"""What is written as JSON."""

GROUP = 5000
"""Rows of a Parquet file that are in memory at once."""


def export(store: Store, path: Path) -> int:
    """Write every row in the format that the file's ending names; how many there were."""
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
        names = [getattr(row.cell, column) for column in COLUMNS]
        texts = [json.dumps(getattr(row.cell, column), sort_keys=True) for column in TEXTS]
        scores = [row.scores.get(metric) for metric in metrics]
        yield (*names, *texts, *scores, row.seconds, row.failure)


def _write_csv(path: Path, metrics: Sequence[str], lines: Iterable[tuple[Any, ...]]) -> int:
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *TEXTS, *metrics, "seconds", "failure"])
        for line in lines:
            writer.writerow(line)
            count += 1
    return count


def _write_parquet(path: Path, metrics: Sequence[str], lines: Iterable[tuple[Any, ...]]) -> int:
    arrow, parquet = _pyarrow()
    text, number = arrow.string(), arrow.float64()
    kinds = dict.fromkeys((*COLUMNS, *TEXTS), text) | dict.fromkeys(metrics, number)
    schema = arrow.schema({**kinds, "seconds": number, "failure": text})
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        remaining = iter(lines)
        while group := list(islice(remaining, GROUP)):
            columns = [list(column) for column in zip(*group, strict=True)]
            writer.write_table(arrow.table(columns, schema=schema))
            count += len(group)
    return count


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            "Parquet files need pyarrow: pip install 'dmbp[parquet]', or export to .csv"
        ) from error


Writer = Callable[[Path, Sequence[str], Iterable[tuple[Any, ...]]], int]

WRITERS: Mapping[str, Writer] = {".csv": _write_csv, ".parquet": _write_parquet}
