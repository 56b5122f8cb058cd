"""What came of a cell, and how it is written to a line of a database."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dmbp.bench.cell import Cell

COLUMNS = (
    "dataset, image, photo, target, model, weights, method, settings, scoring, "
    "scores, curves, seconds, failure, written"
)


@dataclass(frozen=True)
class Row:
    """What came of a cell: scores by metric, their curves and the seconds, or why it failed.

    `written` is when it was first written to a file, in seconds since 1970.
    """

    cell: Cell
    scores: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seconds: float | None = None
    failure: str | None = None
    written: float | None = field(default=None, compare=False)


def values_of(row: Row, written: float) -> tuple[Any, ...]:
    """A row as the values of a line, its key first."""
    cell = row.cell
    names = (cell.dataset, cell.image, cell.photo, cell.target, cell.model, cell.weights)
    texts = [cell.settings, cell.scoring, row.scores, row.curves]
    settings, scoring, scores, curves = (_json(value) for value in texts)
    results = (scores, curves, row.seconds, row.failure, written)
    return (cell.key, *names, cell.method, settings, scoring, *results)


def row_of(values: Sequence[Any]) -> Row:
    """A row from the values of `COLUMNS`."""
    dataset, image, photo, target, model, weights, method, *rest = values
    settings, scoring, scores, curves = (json.loads(text) for text in rest[:4])
    names = (dataset, image, photo, target, model, weights, method)
    return Row(Cell(*names, settings, scoring), scores, curves, *rest[4:])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
