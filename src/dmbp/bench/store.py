"""The store of results: one SQLite file with a row for each cell that was tried.

A cell is one question of a benchmark answered by one method, identified by everything that
determines its result:

    >>> from dataclasses import replace
    >>> cell = Cell("voc", "2008_000002", "9f2c…", "cat", "resnet50", "77ab…", "gradcam", {}, {})
    >>> len(cell.key), cell.key == replace(cell, method="dmbp").key
    (32, False)

The same cell has the same key in every run and on every machine; a change to the photo, the weights
or any setting changes the key. Rows are written in batches, each of them whole or not at all, so a
run can be killed at any moment and continues where it stopped. The row of a cell that succeeded is
never overwritten; that of a cell that failed is replaced when the cell is tried again. Several
processes may write to one file, and two files can be merged.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from dmbp.errors import InputError, OutputError
from dmbp.files import printable

__all__ = ["COLUMNS", "RESULTS_VERSION", "Cell", "DigestCache", "ResultRow", "Store"]

RESULTS_VERSION = 2
"""Part of every key; incremented when a change to a method or metric changes its results."""


@dataclass(frozen=True)
class Cell:
    """Everything that determines a result: photo, class, model, method and scoring.

    `photo` and `weights` are digests of contents. `settings` are those of the method; `scoring` has
    the metrics that score the attribution and their settings (steps, activation, preprocessing).
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
        parts = {k: v for k, v in asdict(self).items() if k not in ("dataset", "model")}
        text = _to_json({"results": RESULTS_VERSION, **parts})
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ResultRow:
    """A cell's result: scores by metric, their curves and the seconds taken, or why it failed.

    `seconds` is the time one attribution took. `written` is when the row was first written to a
    file, in seconds since 1970.
    """

    cell: Cell
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    seconds: float | None = None
    failure: str | None = None
    written: float | None = field(default=None, compare=False)


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


CELL_COLUMNS = tuple(item.name for item in fields(Cell))
RESULT_COLUMNS = tuple(item.name for item in fields(ResultRow) if item.name != "cell")
COLUMNS = CELL_COLUMNS + RESULT_COLUMNS
"""The columns of a row after its key, in the file's order."""

JSON_COLUMNS = ("settings", "scoring", "scores", "curves")
NUMBER_COLUMNS = ("seconds", "written")


def _to_columns(row: ResultRow, written: float) -> list[Any]:
    """Return the values of a row's columns, the key first."""
    named = {**vars(row.cell), **vars(row), "written": row.written or written}
    return [row.cell.key] + [
        _to_json(named[name]) if name in JSON_COLUMNS else named[name] for name in COLUMNS
    ]


def _from_columns(values: Sequence[Any]) -> ResultRow:
    """Return the row whose columns, without the key, have these values."""
    named = {
        name: json.loads(value) if name in JSON_COLUMNS else value
        for name, value in zip(COLUMNS, values, strict=True)
    }
    cell = Cell(**{name: named[name] for name in CELL_COLUMNS})
    return ResultRow(cell, **{name: named[name] for name in RESULT_COLUMNS})


SCHEMA_VERSION = 1
"""Version of the tables, stored in the file as SQLite's `user_version`."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for another process to finish writing."""

_TYPED_COLUMNS = [f"{name} {'REAL' if name in NUMBER_COLUMNS else 'TEXT'}" for name in COLUMNS]
_SCHEMA = f"""
CREATE TABLE rows (key TEXT PRIMARY KEY, {", ".join(_TYPED_COLUMNS)}) WITHOUT ROWID;
CREATE INDEX by_question ON rows (model, dataset, method);
CREATE TABLE digests (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, digest TEXT);
"""

# A photo's digest is part of the key, so the failed row of a broken photo stays in the file after
# the photo was repaired and its cell succeeded. Such a row no longer counts.
_QUESTION = ", ".join(name for name in CELL_COLUMNS if name != "photo")
_CURRENT_ROWS = (
    f"SELECT rows.* FROM rows LEFT JOIN (SELECT {_QUESTION}, max(written) AS repaired FROM rows "
    f"WHERE failure IS NULL GROUP BY {_QUESTION}) USING ({_QUESTION}) "
    "WHERE failure IS NULL OR repaired IS NULL OR repaired < written"
)

_INSERT = (
    f"INSERT INTO rows VALUES ({', '.join('?' * (1 + len(COLUMNS)))}) "
    "ON CONFLICT (key) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in RESULT_COLUMNS)} "
    "WHERE rows.failure IS NOT NULL"
)

Item = TypeVar("Item")

KEYS_PER_QUERY = 500
ROWS_PER_MERGE = 1000


class Store:
    """A file of results.

    Args:
        path: The file, which is created if it does not exist, unless `read_only`.
        read_only: Also accept a file that cannot be written, or whose folder cannot, and open it
            for reading. A file that can be written is still opened for writing: SQLite's log
            requires that even to read, and digests of photos are stored in the file.

    Raises:
        InputError: If the file is not a store, or has another layout.
        OutputError: If the file cannot be opened or written.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._database = Database(path, read_only=read_only)
        self.digests = DigestCache(self._database)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, rows: Iterable[ResultRow]) -> None:
        """Write rows, all or none; cells that have already succeeded keep their row."""
        now = time.time()
        self._database.write(_INSERT, [_to_columns(row, now) for row in rows])

    def failed_by_key(self, keys: Iterable[str]) -> dict[str, bool]:
        """Return whether each cell failed, for the keys that have a row."""
        query = "SELECT key, failure IS NOT NULL FROM rows WHERE key IN"
        return {key: bool(failed) for key, failed in self._select(query, keys)}

    def rows(self) -> Iterator[ResultRow]:
        """Yield every row; they are read from the file as they are needed."""
        order = "ORDER BY model, dataset, image, target, method"
        for values in self._database.read(f"SELECT {', '.join(COLUMNS)} FROM rows {order}"):
            yield _from_columns(values)

    def rows_by_key(self, keys: Iterable[str]) -> dict[str, ResultRow]:
        """Return rows by key, for the keys that have one."""
        query = f"SELECT key, {', '.join(COLUMNS)} FROM rows WHERE key IN"
        return {key: _from_columns(values) for key, *values in self._select(query, keys)}

    def _select(self, query: str, keys: Iterable[str]) -> Iterator[Any]:
        for batch in _batches(keys, KEYS_PER_QUERY):
            yield from self._database.read(f"{query} ({', '.join('?' * len(batch))})", batch)

    def metrics(self) -> list[str]:
        """Return every metric for which any row has a score."""
        query = "SELECT DISTINCT j.key FROM rows, json_each(rows.scores) AS j ORDER BY j.key"
        return [metric for (metric,) in self._database.read(query)]

    def counts(self) -> list[tuple[str, str, str, int, int]]:
        """Return the number of rows and of failed rows by model, dataset and method.

        The failures of photos that have been repaired since are not counted.
        """
        names = "model, dataset, method"
        return list(
            self._database.read(
                f"SELECT {names}, count(*), count(failure) FROM ({_CURRENT_ROWS}) "
                f"GROUP BY {names} ORDER BY {names}"
            )
        )

    def failures(self) -> list[tuple[str, int]]:
        """Return the reasons for failures and how often each occurs, the most frequent first."""
        return list(
            self._database.read(
                f"SELECT failure, count(*) FROM ({_CURRENT_ROWS}) WHERE failure IS NOT NULL "
                "GROUP BY failure ORDER BY count(*) DESC, failure"
            )
        )

    def merge(self, other: Path) -> tuple[int, int]:
        """Add the rows of another file; for a cell in both, a row that succeeded is kept.

        Returns:
            How many of the other file's rows are new, and how many this file had already.
        """
        before = len(self)
        source = Store(other, read_only=True)
        try:
            for rows in _batches(source.rows(), ROWS_PER_MERGE):
                self.add(rows)
            added = len(self) - before
            return added, len(source) - added
        finally:
            source.close()

    def __len__(self) -> int:
        return next(number for (number,) in self._database.read("SELECT COUNT(*) FROM rows"))


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


class DigestCache:
    """Digests of photo files, valid until a file's size or modification time changes.

    They are kept in the same file as the results, so that a run of fifty thousand photos does not
    read them all again when it is continued.
    """

    def __init__(self, database: "Database") -> None:
        self._database = database

    def get(self, path: Path) -> str | None:
        """Return the digest of a file, or None if it is unknown or the file has changed."""
        version = _file_version(path)
        if version is None:
            return None
        query = "SELECT digest FROM digests WHERE path = ? AND size = ? AND changed = ?"
        return next(
            (digest for (digest,) in self._database.read(query, (_key(path), *version))), None
        )

    def put(self, digests: Mapping[Path, str]) -> None:
        """Remember the digests of files, except of files that have vanished meanwhile.

        Nothing is remembered if the store cannot be written.
        """
        if self._database.is_read_only:
            return
        versions = {path: _file_version(path) for path in digests}
        self._database.write(
            "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)",
            [
                (_key(path), *version, digests[path])
                for path, version in versions.items()
                if version
            ],
        )


def _key(path: Path) -> str:
    """Return a path as text that SQLite can store."""
    return printable(str(path))


def _file_version(path: Path) -> tuple[int, int] | None:
    """Return a file's size and modification time, or None if it cannot be accessed."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


class Database:
    """The SQLite file of a store; its errors are raised as `InputError` or `OutputError`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self._path = path
        self.is_read_only = read_only and not _is_writable(path)
        with self._errors_translated():
            self.connection = sqlite3.connect(
                _read_only_address(path) if self.is_read_only else path,
                timeout=LOCK_TIMEOUT,
                isolation_level=None,
                uri=self.is_read_only,
            )
            if not self.is_read_only:
                self._create_tables()
            self._check_version()

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows that a query selects."""
        with self._errors_translated():
            yield from self.connection.execute(query, values)

    def write(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for every row, all or none."""
        with self._errors_translated(), self._transaction():
            self.connection.executemany(statement, rows)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """Commit what is executed inside, or roll all of it back if anything is raised."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:  # SQLite itself rolls back if the disk is full
                self.connection.execute("ROLLBACK")
            raise

    def _check_version(self) -> None:
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise InputError(f"{self._path} is a database, but not one of dmbp's benchmarks")
        if version != SCHEMA_VERSION:
            raise InputError(
                f"{self._path} was written by another version of dmbp (layout {version}, here "
                f"{SCHEMA_VERSION}); use that version, or begin a new file"
            )

    def _create_tables(self) -> None:
        """Create the tables of a new file, which several processes may be opening at once."""
        self._enable_write_ahead_log()
        self.connection.execute("PRAGMA synchronous = NORMAL")
        with self._transaction():
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            tables = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version == 0 and tables == 0:
                for statement in _SCHEMA.split(";"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _enable_write_ahead_log(self) -> None:
        """Switch the journal mode, retrying while locked: SQLite does not wait for this lock."""
        end = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    @contextmanager
    def _errors_translated(self) -> Generator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            reason = str(error)
            if "not a database" in reason or "malformed" in reason:
                raise InputError(f"{self._path} is not a database that can be read") from error
            raise OutputError(f"cannot write to {self._path}: {reason}") from error


def _is_writable(path: Path) -> bool:
    """Return whether SQLite can write the file, and its log beside it."""
    return os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)


def _read_only_address(path: Path) -> str:
    """Return a URI for reading a file, with its log if a run left one, else without locks."""
    log = path.with_name(f"{path.name}-wal")
    has_log = log.is_file() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?{'mode=ro' if has_log else 'immutable=1'}"
