"""A row of the store: the result of one cell, and the columns of the file that hold it.

A cell is one question of a benchmark answered by one method, identified by everything that
determines its result:

    >>> from dataclasses import replace
    >>> cell = Cell("voc", "2008_000002", "9f2c…", "cat", "resnet50", "77ab…", "gradcam", {}, {})
    >>> len(cell.key), cell.key == replace(cell, method="dmbp").key
    (32, False)

The same cell has the same key in every run and on every machine; a change to the photo, the weights
or any setting changes the key. A file may be damaged, so nothing that is read from one is taken for
granted: `from_columns` checks the type of every value, that numbers are finite, that the key is
that of the cell, and how long the curves are. What it cannot use is a `DamagedRow`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, cast

from dmbp.errors import InputError
from dmbp.files import shown
from dmbp.metric_table import curve_points
from dmbp.validation import ErrorContext, check_arguments

__all__ = ["COLUMNS", "RESULTS_VERSION", "Cell", "DamagedRow", "ResultRow"]

RESULTS_VERSION = 2
"""Part of every key; incremented when a change to a method or metric changes its results."""

KNOWN_VERSIONS = range(1, 100)
"""Versions of results whose keys are recognised: rows of another release are not damaged."""


@dataclass(frozen=True)
class Cell:
    """Everything that determines a result: photo, class, model, method and scoring.

    `photo` and `weights` are digests of contents. `settings` are those of the method; `scoring` has
    the settings of all metrics (steps, activation, preprocessing), but not which metrics are
    computed: a plan that names another one adds its score to the row.
    """

    dataset: str
    image: str
    photo: str
    target: str
    model: str
    weights: str
    method: str
    settings: Mapping[str, Any]
    scoring: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """A digest of all fields except the names of dataset and model, which affect no result."""
        return self.key_of_version(RESULTS_VERSION)

    def key_of_version(self, version: int) -> str:
        """Return the key that the cell has, or had, in a version of the results."""
        parts = {name: getattr(self, name) for name in KEY_COLUMNS}
        text = _to_json({"results": version, **parts})
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ResultRow:
    """A cell's result: scores by metric, their curves and the seconds taken, or why it failed.

    `seconds` is the time one attribution took. `written` is when the row was first written to a
    file, in seconds since 1970. `unscored` are the metrics that were tried and gave no score:
    because they do not apply, or because of the failure.
    """

    cell: Cell
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    seconds: float | None = None
    failure: str | None = None
    written: float | None = field(default=None, compare=False)
    unscored: frozenset[str] = frozenset()

    @property
    def tried(self) -> frozenset[str]:
        """The metrics that were tried, with or without success."""
        return self.unscored.union(self.scores)

    @property
    def settled(self) -> frozenset[str]:
        """The metrics that have a score, or were found not to apply."""
        return self.tried if self.failure is None else frozenset(self.scores)

    def updated(self, new: "ResultRow") -> "ResultRow":
        """Return this row with what a later one of the same cell adds; scores stay as they are."""
        scores = {**new.scores, **self.scores}
        was_open = self.failure is not None and not self.tried <= new.settled | self.scores.keys()
        is_open = new.failure is not None and not new.tried <= self.settled | new.scores.keys()
        failure = new.failure if is_open else self.failure if was_open else None
        if new.failure is not None and not new.tried:  # nobody knows which metrics failed
            failure = self.failure and new.failure
        return ResultRow(
            self.cell,
            scores,
            {**new.curves, **self.curves},
            seconds=new.seconds if self.seconds is None else self.seconds,
            failure=failure,
            written=new.written if self.failure is not None else self.written,
            unscored=(self.unscored | new.unscored).difference(scores),
        )


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


CELL_COLUMNS = tuple(item.name for item in fields(Cell))
KEY_COLUMNS = tuple(name for name in CELL_COLUMNS if name not in ("dataset", "model"))
RESULT_COLUMNS = tuple(
    item.name for item in fields(ResultRow) if item.name not in ("cell", "unscored")
)
COLUMNS = CELL_COLUMNS + RESULT_COLUMNS
"""The columns of a row after its key, in the file's order."""

JSON_COLUMNS = ("settings", "scoring", "scores", "curves")
NUMBER_COLUMNS = ("seconds", "written")


def to_columns(row: ResultRow, written: float) -> list[Any]:
    """Return the values of a row's columns, the key first; metrics without a score have null."""
    scores = {**row.scores, **dict.fromkeys(sorted(row.unscored))}
    named = {**vars(row.cell), **vars(row), "scores": scores, "written": row.written or written}
    return [row.cell.key] + [
        _to_json(named[name]) if name in JSON_COLUMNS else named[name] for name in COLUMNS
    ]


@dataclass(frozen=True)
class DamagedRow:
    """A row of a file that cannot be used; `problem` is a sentence that names it and says why.

    `key` is the value of the key's column, which may be damaged too.
    """

    key: str | bytes
    problem: str

    @property
    def hex_key(self) -> str:
        """The key as SQLite's function `hex` writes it."""
        raw = self.key if isinstance(self.key, bytes) else self.key.encode()
        return raw.hex().upper()


_COLUMN_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(CELL_COLUMNS, str),
    "settings": dict[str, Any],
    "scoring": dict[str, Any],
    "scores": dict[str, float],
    "curves": dict[str, list[float]],
    "seconds": float | None,
    "failure": str | None,
    "written": float | None,
}
"""What each column holds once its JSON is decoded; numbers are finite."""

_REQUIRED_COLUMNS = {name: (kind, ...) for name, kind in _COLUMN_TYPES.items()}


def from_columns(key: str | bytes, values: Sequence[Any]) -> ResultRow | DamagedRow:
    """Return the row whose columns have these values; text that is not UTF-8 is given as bytes."""
    named = dict(zip(COLUMNS, values, strict=True))
    try:
        return _checked_row(key, named)
    except InputError as error:
        return DamagedRow(key, f"{_row_name(key, named)} is damaged: {error}")


def _checked_row(key: str | bytes, named: Mapping[str, Any]) -> ResultRow:
    columns = {
        name: _decoded(name, value) if name in JSON_COLUMNS else value
        for name, value in named.items()
    }
    unscored: frozenset[str] = frozenset()
    if isinstance(columns["scores"], dict):
        given = cast("dict[str, Any]", columns["scores"])
        columns["scores"] = {name: score for name, score in given.items() if score is not None}
        unscored = frozenset(given).difference(columns["scores"])
    check_arguments(_REQUIRED_COLUMNS, columns, _CONTEXT)
    cell = Cell(**{name: columns[name] for name in CELL_COLUMNS})
    if not _is_key_of(cell, key):
        raise InputError("its key is not that of its contents")
    steps = cell.scoring.get("steps")
    for metric, curve in columns["curves"].items():
        if isinstance(steps, int) and len(curve) != (points := curve_points(metric, steps)):
            raise InputError(f"its {metric} curve has {len(curve)} points, not {points}")
    return ResultRow(cell, **{name: columns[name] for name in RESULT_COLUMNS}, unscored=unscored)


_CONTEXT = ErrorContext("a row", key_name=repr)


def _decoded(column: str, text: Any) -> Any:
    try:
        value = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair is valid JSON, but cannot be written
            _to_json(value).encode()
        return value
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{column!r} is not JSON") from error


def _is_key_of(cell: Cell, key: str | bytes) -> bool:
    try:
        return cell.key == key or any(cell.key_of_version(v) == key for v in KNOWN_VERSIONS)
    except (ValueError, RecursionError):  # a setting that no cell can have had
        return False


def _row_name(key: str | bytes, named: Mapping[str, Any]) -> str:
    """Return what messages call a row; any of its values may be damaged."""
    method, image, target = (_shown(named[name]) for name in ("method", "image", "target"))
    return f"the row {_shown(key)} ({method}, {image}, class {target})"


def _shown(value: Any) -> str:
    return shown(value if isinstance(value, str) else repr(value))
