"""A cell of a benchmark: one question to one method, known by all that determines its result.

    >>> cell = Cell("voc", "2008_000002", "9f2c…", "cat", "resnet50", "77ab…", "gradcam", {}, {})
    >>> len(cell.key), cell.key == replace(cell, method="dmbp").key
    (32, False)

Two runs, on two machines, of the same question have the same key; a change of the photo, of the
weights or of any setting makes another.

What came of a cell, and how it is written to a line of a database.

Where results are kept: one SQLite file, a row for each cell that was tried.

Rows arrive in batches, each batch whole or not at all, so a run may be killed at any moment and
goes on where it was. A cell that succeeded is never written again; one that failed is replaced when
it is tried anew. Several processes may write to one file, and two files can be merged.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dmbp.errors import InputError, OutputError

__all__ = ["RESULTS", "Cell", "replace"]

RESULTS = 2
"""Raised whenever a method or a metric of ours comes to give other results."""


@dataclass(frozen=True)
class Cell:
    """What is asked: of which photo, about which class, of which model, by which method.

    `photo` and `weights` are digests of the files' contents. `settings` are the method's,
    `scoring` what it is scored by and how (metrics, steps, preprocessing).
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

    @property
    def variant(self) -> tuple[str, str]:
        """The method and its settings."""
        return self.method, json.dumps(dict(self.settings), sort_keys=True)

    @cached_property
    def key(self) -> str:
        """A digest of all of it but the names of dataset and model, which decide nothing."""
        parts = {k: v for k, v in asdict(self).items() if k not in ("dataset", "model")}
        text = json.dumps({"results": RESULTS, **parts}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


COLUMNS = (
    "dataset, image, photo, target, model, weights, method, settings, scoring, "
    "scores, curves, seconds, failure, written"
)


@dataclass(frozen=True)
class ResultRow:
    """What came of a cell: scores by metric, their curves and the seconds, or why it failed.

    `written` is when it was first written to a file, in seconds since 1970.
    """

    cell: Cell
    scores: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seconds: float | None = None
    failure: str | None = None
    written: float | None = field(default=None, compare=False)


def values_of(row: ResultRow, written: float) -> tuple[Any, ...]:
    """A row as the values of a line, its key first."""
    cell = row.cell
    names = (cell.dataset, cell.image, cell.photo, cell.target, cell.model, cell.weights)
    texts = [cell.settings, cell.scoring, row.scores, row.curves]
    settings, scoring, scores, curves = (_json(value) for value in texts)
    results = (scores, curves, row.seconds, row.failure, written)
    return (cell.key, *names, cell.method, settings, scoring, *results)


def row_of(values: Sequence[Any]) -> ResultRow:
    """A row from the values of `COLUMNS`."""
    dataset, image, photo, target, model, weights, method, *rest = values
    settings, scoring, scores, curves = (json.loads(text) for text in rest[:4])
    names = (dataset, image, photo, target, model, weights, method)
    return ResultRow(Cell(*names, settings, scoring), scores, curves, *rest[4:])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


VERSION = 1
"""Of the file's layout, kept in the file itself."""

PATIENCE = 60.0
"""Seconds to wait for another process to finish writing."""

_TABLES = """
CREATE TABLE rows (
    key TEXT PRIMARY KEY, dataset TEXT, image TEXT, photo TEXT, target TEXT, model TEXT,
    weights TEXT, method TEXT, settings TEXT, scoring TEXT,
    scores TEXT, curves TEXT, seconds REAL, failure TEXT, written REAL
) WITHOUT ROWID;
CREATE INDEX by_question ON rows (model, dataset, method);
CREATE TABLE digests (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, digest TEXT);
"""


# The rows that stand: a cell has its photo's digest in its key, so a failure stays in the file when
# another photo of that name has succeeded since.
_QUESTION = "image, target, dataset, model, weights, method, settings, scoring"
_STANDING = (
    f"SELECT rows.* FROM rows LEFT JOIN (SELECT {_QUESTION}, max(written) AS repaired FROM rows "
    f"WHERE failure IS NULL GROUP BY {_QUESTION}) USING ({_QUESTION}) "
    "WHERE failure IS NULL OR repaired IS NULL OR repaired < written"
)


class Store:
    """A file of rows; one that may not be written, or lies where nothing may be, can be read."""

    def __init__(self, path: Path, *, reading: bool = False) -> None:
        self.path = path
        self.is_fixed = reading and not _writable(path)
        with self._told():
            place = _fixed(path) if self.is_fixed else path
            self._connection = sqlite3.connect(
                place, timeout=PATIENCE, isolation_level=None, uri=self.is_fixed
            )
            self._prepare()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add(self, rows: Iterable[ResultRow]) -> None:
        """Write rows, all or none; what is done already stays as it is."""
        now = time.time()
        values = [values_of(row, row.written or now) for row in rows]
        marks = ", ".join("?" * 15)
        with self._transaction():
            self._connection.executemany(
                f"INSERT INTO rows VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET "
                "scores = excluded.scores, curves = excluded.curves, seconds = excluded.seconds, "
                "failure = excluded.failure, written = excluded.written "
                "WHERE rows.failure IS NOT NULL",
                values,
            )

    def done(self, keys: Iterable[str], *, failed: bool = True) -> set[str]:
        """Of some cells' keys, those that have a row; failures count too where `failed`."""
        condition = "" if failed else " AND failure IS NULL"
        found: set[str] = set()
        for part in _parts(keys):
            query = f"SELECT key FROM rows WHERE key IN ({_marks(part)}){condition}"
            found.update(key for (key,) in self._read(query, part))
        return found

    def rows(self) -> Iterator[ResultRow]:
        """Every row, a few at a time."""
        order = "ORDER BY model, dataset, image, target, method"
        for values in self._read(f"SELECT {COLUMNS} FROM rows {order}"):
            yield row_of(values)

    def rows_of(self, keys: Iterable[str]) -> dict[str, ResultRow]:
        """The rows of some cells, by their keys; of cells that were never tried there is none."""
        found: dict[str, ResultRow] = {}
        for part in _parts(keys):
            query = f"SELECT key, {COLUMNS} FROM rows WHERE key IN ({_marks(part)})"
            for key, *values in self._read(query, part):
                found[key] = row_of(values)
        return found

    def metrics(self) -> list[str]:
        """Every metric that some row has a score of."""
        query = "SELECT DISTINCT j.key FROM rows, json_each(rows.scores) AS j ORDER BY j.key"
        return [metric for (metric,) in self._read(query)]

    def counts(self) -> list[tuple[str, str, str, int, int]]:
        """By model, dataset and method: how many rows there are, and how many of them failed.

        A failure on a photo that was repaired since counts as neither.
        """
        return list(
            self._read(
                f"SELECT model, dataset, method, count(*), count(failure) FROM ({_STANDING}) "
                "GROUP BY model, dataset, method ORDER BY model, dataset, method"
            )
        )

    def failures(self) -> list[tuple[str, int]]:
        """What went wrong, and how often, the most frequent first."""
        return list(
            self._read(
                f"SELECT failure, count(*) FROM ({_STANDING}) WHERE failure IS NOT NULL "
                "GROUP BY failure ORDER BY count(*) DESC, failure"
            )
        )

    def merge(self, other: Path) -> tuple[int, int]:
        """Take in the rows of another file; of a cell in both, one that succeeded.

        Returns how many of its rows are new, and how many were there.
        """
        count = 0
        before = len(self)
        theirs = Store(other, reading=True)  # says so where it is none
        try:
            batch: list[ResultRow] = []
            for row in theirs.rows():
                batch.append(row)
                count += 1
                if len(batch) == 1000:
                    self.add(batch)
                    batch = []
            self.add(batch)
        finally:
            theirs.close()
        return len(self) - before, count - (len(self) - before)

    def __len__(self) -> int:
        return next(number for (number,) in self._read("SELECT COUNT(*) FROM rows", ()))

    def digest(self, path: Path) -> str | None:
        """The digest that was noted of a file, unless it has changed since, or gone."""
        state = _state(path)
        if state is None:
            return None
        query = "SELECT digest FROM digests WHERE path = ? AND size = ? AND changed = ?"
        return next((digest for (digest,) in self._read(query, (str(path), *state))), None)

    def note_digests(self, digests: Mapping[Path, str]) -> None:
        """Remember the digests of files as they are; one that vanished meanwhile is left out.

        In a store that may not be written nothing is remembered, and they are computed again.
        """
        if self.is_fixed:
            return
        states = {path: _state(path) for path in digests}
        values = [(str(path), *state, digests[path]) for path, state in states.items() if state]
        with self._transaction():
            self._connection.executemany(
                "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)", values
            )

    def _read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        with self._told():
            yield from self._connection.execute(query, values)

    def _prepare(self) -> None:
        if not self.is_fixed:
            self._make_tables()
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise InputError(f"{self.path} is a database, but not one of dmbp's benchmarks")
        if version != VERSION:
            raise InputError(
                f"{self.path} was written by another version of dmbp (layout {version}, here "
                f"{VERSION}); use that version, or begin a new file"
            )

    def _make_tables(self) -> None:
        """In a new file; two processes may open one at once."""
        connection = self._connection
        self._log_ahead()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version == 0 and tables == 0:
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
        finally:
            connection.execute("COMMIT")

    def _log_ahead(self) -> None:
        """Keep a write-ahead log; SQLite does not itself wait for whoever is just doing so too."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Generator[None]:
        """Whatever SQLite meets, in a sentence."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            said = str(error)
            if "not a database" in said or "malformed" in said:
                raise InputError(f"{self.path} is not a database that can be read") from error
            raise OutputError(f"cannot write to {self.path}: {said}") from error


def _writable(path: Path) -> bool:
    """Whether SQLite can write: also beside the file, where it keeps its log."""
    return os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)


def _fixed(path: Path) -> str:
    """The address of a file to be read without a lock, and without its log unless one was left."""
    log = path.with_name(f"{path.name}-wal")
    left = log.is_file() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?{'mode=ro' if left else 'immutable=1'}"


def _state(path: Path) -> tuple[int, int] | None:
    """A file's size and when it changed; None of one that cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _parts(keys: Iterable[str]) -> Iterator[list[str]]:
    """Keys, as many at a time as a query takes."""
    asked = list(keys)
    for start in range(0, len(asked), 500):
        yield asked[start : start + 500]


def _marks(part: Sequence[str]) -> str:
    return ", ".join("?" * len(part))
