"""Where results are kept: one SQLite file with a row for each cell that was tried.

A cell is one question of a benchmark to one method, identified by everything that determines its
result:

    >>> cell = Cell("voc", "2008_000002", "9f2c…", "cat", "resnet50", "77ab…", "gradcam", {}, {})
    >>> len(cell.key), cell.key == replace(cell, method="dmbp").key
    (32, False)

The same question has the same key in every run and on every machine; a change to the photo, the
weights or any setting makes another key. Rows are written in batches, each batch whole or not at
all, so a run may be killed at any moment and continues where it stopped. A cell that succeeded is
never overwritten; one that failed is replaced when it is tried again. Several processes may write
to one file, and two files can be merged.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from dmbp.errors import InputError, OutputError

__all__ = ["COLUMNS", "RESULTS_VERSION", "Cell", "DigestCache", "ResultRow", "Store", "replace"]

RESULTS_VERSION = 2
"""Part of every key; raised whenever a method or a metric of ours comes to give other results."""


@dataclass(frozen=True)
class Cell:
    """What determines a result: photo, class, model, method and scoring.

    `photo` and `weights` are digests of contents. `settings` are the method's; `scoring` says which
    metrics score the attribution and how (steps, activation, preprocessing).
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
        """A digest of all fields but the names of dataset and model, which decide nothing."""
        parts = {k: v for k, v in asdict(self).items() if k not in ("dataset", "model")}
        text = _to_json({"results": RESULTS_VERSION, **parts})
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ResultRow:
    """A cell's result: scores by metric, their curves and the seconds taken, or why it failed.

    `written` is when the row was first written to a file, in seconds since 1970.
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


def _values_of(row: ResultRow, written: float) -> list[Any]:
    """Return a row as the values of its columns, the key first."""
    named = {**vars(row.cell), **vars(row), "written": row.written or written}
    return [row.cell.key] + [
        _to_json(named[name]) if name in JSON_COLUMNS else named[name] for name in COLUMNS
    ]


def _row_of(values: Sequence[Any]) -> ResultRow:
    """Return the row with these values in its columns."""
    named = {
        name: json.loads(value) if name in JSON_COLUMNS else value
        for name, value in zip(COLUMNS, values, strict=True)
    }
    cell = Cell(**{name: named[name] for name in CELL_COLUMNS})
    return ResultRow(cell, **{name: named[name] for name in RESULT_COLUMNS})


LAYOUT_VERSION = 1
"""Version of the file's tables, kept in the file itself."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for another process to finish writing."""

_TYPED_COLUMNS = [f"{name} {'REAL' if name in NUMBER_COLUMNS else 'TEXT'}" for name in COLUMNS]
_TABLES = f"""
CREATE TABLE rows (key TEXT PRIMARY KEY, {", ".join(_TYPED_COLUMNS)}) WITHOUT ROWID;
CREATE INDEX by_question ON rows (model, dataset, method);
CREATE TABLE digests (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, digest TEXT);
"""

# A photo's digest is part of the key, so the failure of a broken photo stays in the file after the
# photo was repaired and succeeded. Such a row no longer counts.
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

KEYS_A_QUERY = 500
ROWS_A_MERGE = 1000


class Store:
    """A file of results.

    Args:
        path: The file; it is created if it does not exist.
        read_only: Only read. A file that cannot be written, or whose folder cannot, is then opened
            without a lock.

    Raises:
        InputError: The file is not a store, or has another layout.
        OutputError: The file cannot be opened or written.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._database = Database(path, read_only=read_only)
        self.digests = DigestCache(self._database)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, rows: Iterable[ResultRow]) -> None:
        """Write rows, all or none; cells that have succeeded before keep their row."""
        now = time.time()
        self._database.write(_INSERT, [_values_of(row, now) for row in rows])

    def failed_by_key(self, keys: Iterable[str]) -> dict[str, bool]:
        """Return whether each cell failed, for those of the given keys that have a row."""
        query = "SELECT key, failure IS NOT NULL FROM rows WHERE key IN"
        return {key: bool(failed) for key, failed in self._select(query, keys)}

    def rows(self) -> Iterator[ResultRow]:
        """Yield every row, reading a few at a time."""
        order = "ORDER BY model, dataset, image, target, method"
        for values in self._database.read(f"SELECT {', '.join(COLUMNS)} FROM rows {order}"):
            yield _row_of(values)

    def rows_by_key(self, keys: Iterable[str]) -> dict[str, ResultRow]:
        """Return the rows of those of the given keys that have one."""
        query = f"SELECT key, {', '.join(COLUMNS)} FROM rows WHERE key IN"
        return {key: _row_of(values) for key, *values in self._select(query, keys)}

    def _select(self, query: str, keys: Iterable[str]) -> Iterator[Any]:
        for some in _batches(keys, KEYS_A_QUERY):
            yield from self._database.read(f"{query} ({', '.join('?' * len(some))})", some)

    def metrics(self) -> list[str]:
        """Return every metric for which some row has a score."""
        query = "SELECT DISTINCT j.key FROM rows, json_each(rows.scores) AS j ORDER BY j.key"
        return [metric for (metric,) in self._database.read(query)]

    def counts(self) -> list[tuple[str, str, str, int, int]]:
        """Return the number of rows and of failed rows by model, dataset and method.

        The failure of a photo that was repaired since is not counted.
        """
        names = "model, dataset, method"
        return list(
            self._database.read(
                f"SELECT {names}, count(*), count(failure) FROM ({_CURRENT_ROWS}) "
                f"GROUP BY {names} ORDER BY {names}"
            )
        )

    def failures(self) -> list[tuple[str, int]]:
        """Return every reason for a failure and how often it occurs, the most frequent first."""
        return list(
            self._database.read(
                f"SELECT failure, count(*) FROM ({_CURRENT_ROWS}) WHERE failure IS NOT NULL "
                "GROUP BY failure ORDER BY count(*) DESC, failure"
            )
        )

    def merge(self, other: Path) -> tuple[int, int]:
        """Add the rows of another file; for a cell in both, a row that succeeded is kept.

        Returns:
            How many of the other file's rows are new, and how many were there already.
        """
        before = len(self)
        theirs = Store(other, read_only=True)
        try:
            for rows in _batches(theirs.rows(), ROWS_A_MERGE):
                self.add(rows)
            added = len(self) - before
            return added, len(theirs) - added
        finally:
            theirs.close()

    def __len__(self) -> int:
        return next(number for (number,) in self._database.read("SELECT COUNT(*) FROM rows"))


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


class DigestCache:
    """Digests of photo files, remembered until a file's size or time changes.

    They are kept in the same file as the results, so that a run of fifty thousand photos that is
    continued does not read them all again.
    """

    def __init__(self, database: "Database") -> None:
        self._database = database

    def get(self, path: Path) -> str | None:
        """Return the digest remembered for a file, or None if it changed since or is gone."""
        version = _file_version(path)
        if version is None:
            return None
        query = "SELECT digest FROM digests WHERE path = ? AND size = ? AND changed = ?"
        return next(
            (digest for (digest,) in self._database.read(query, (str(path), *version))), None
        )

    def put(self, digests: Mapping[Path, str]) -> None:
        """Remember the digests of files, except those that vanished meanwhile.

        Nothing is remembered in a file that cannot be written.
        """
        if self._database.is_read_only:
            return
        versions = {path: _file_version(path) for path in digests}
        self._database.write(
            "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)",
            [(str(path), *version, digests[path]) for path, version in versions.items() if version],
        )


def _file_version(path: Path) -> tuple[int, int] | None:
    """Return a file's size and time of change, or None if it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class Database:
    """The SQLite file under a store: opened, checked, and with errors in dmbp's words."""

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
        """Yield what a query selects."""
        with self._errors_translated():
            yield from self.connection.execute(query, values)

    def write(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for every row, all or none."""
        with self._errors_translated():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self.connection.executemany(statement, rows)
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def _check_version(self) -> None:
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise InputError(f"{self._path} is a database, but not one of dmbp's benchmarks")
        if version != LAYOUT_VERSION:
            raise InputError(
                f"{self._path} was written by another version of dmbp (layout {version}, here "
                f"{LAYOUT_VERSION}); use that version, or begin a new file"
            )

    def _create_tables(self) -> None:
        """Create the tables of a new file; two processes may open one at the same time."""
        self._enable_write_ahead_log()
        self.connection.execute("PRAGMA synchronous = NORMAL")
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            tables = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if version == 0 and tables == 0:
                for statement in _TABLES.split(";"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        finally:
            self.connection.execute("COMMIT")

    def _enable_write_ahead_log(self) -> None:
        """Retry while another process does the same: SQLite does not wait for that lock itself."""
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
    """Whether SQLite can write the file, and its log beside it."""
    return os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)


def _read_only_address(path: Path) -> str:
    """Return an address that opens a file without a lock, with its log if a run left one."""
    log = path.with_name(f"{path.name}-wal")
    has_log = log.is_file() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?{'mode=ro' if has_log else 'immutable=1'}"
