"""The store of results: one SQLite file with a row for each cell that was tried.

`dmbp.bench.row` says what a row is. Rows are written in batches, each of them whole or not at all,
so a run can be killed at any moment and continues where it stopped. A score is never overwritten;
a failure is replaced when the cell is tried again, and new metrics are added to the row of their
cell. A row that was damaged later counts as missing, and is replaced too. Several processes may
write to one file, and two files can be merged.
"""

import json
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from dmbp.bench.row import (
    CELL_COLUMNS,
    COLUMNS,
    NUMBER_COLUMNS,
    RESULTS_VERSION,
    Cell,
    DamagedRow,
    ResultRow,
    from_columns,
    to_columns,
)
from dmbp.errors import InputError, OutputError
from dmbp.files import check_file, is_missing, printable, shown

__all__ = ["COLUMNS", "RESULTS_VERSION", "Cell", "DamagedRow", "DigestCache", "ResultRow", "Store"]

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

_COLUMNS_OF_TABLES = {
    "rows": [
        ("key", "TEXT", 1),
        *((name, "REAL" if name in NUMBER_COLUMNS else "TEXT", 0) for name in COLUMNS),
    ],
    "digests": [
        ("path", "TEXT", 1),
        ("size", "INTEGER", 0),
        ("changed", "INTEGER", 0),
        ("digest", "TEXT", 0),
    ],
}
"""The columns of each table: name, type, and 1 if it is the primary key."""

WHAT_TO_DO = "restore a copy of the file, or begin a new one"

# A photo's digest is part of the key, so the failed row of a broken photo stays in the file after
# the photo was repaired and its cell succeeded. Such a row no longer counts.
# The parameter is a JSON list of the damaged rows' keys, which do not count either.
_QUESTION = ", ".join(name for name in CELL_COLUMNS if name != "photo")
_CURRENT_ROWS = (
    "WITH whole AS (SELECT * FROM rows WHERE hex(key) NOT IN (SELECT value FROM json_each(?))) "
    f"SELECT whole.* FROM whole LEFT JOIN (SELECT {_QUESTION}, max(written) AS repaired FROM whole "
    f"WHERE failure IS NULL GROUP BY {_QUESTION}) USING ({_QUESTION}) "
    "WHERE failure IS NULL OR repaired IS NULL OR repaired < written"
)

_INSERT = f"INSERT OR REPLACE INTO rows VALUES ({', '.join('?' * (1 + len(COLUMNS)))})"

_SELECT = f"SELECT key, {', '.join(COLUMNS)} FROM rows"

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
        self._has_warned = False
        self._database = Database(path, read_only=read_only)
        self.digests = DigestCache(self._database)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, rows: Iterable[ResultRow]) -> None:
        """Write rows, all or none; a cell that has a row keeps its scores and gets new ones."""
        now = time.time()
        given = [row if row.written else replace(row, written=now) for row in rows]
        with self._database.transaction() as connection:
            existing = self._rows_of(row.cell.key for row in given)
            found = {key: row for key, row in existing if isinstance(row, ResultRow)}
            changed: dict[str, ResultRow] = {}
            for row in given:
                key = row.cell.key
                before = found.get(key)
                found[key] = row if before is None else before.updated(row)
                if found[key] != before:
                    changed[key] = found[key]
            connection.executemany(_INSERT, (to_columns(row, now) for row in changed.values()))

    def rows(self) -> Iterator[ResultRow]:
        """Yield every row; they are read from the file as they are needed.

        Damaged rows are left out, here and in `rows_by_key`, and a warning names the first.
        """
        return (row for _, row in self._whole(self._all_rows()))

    def rows_by_key(self, keys: Iterable[str]) -> dict[str, ResultRow]:
        """Return rows by key, for the keys that have one."""
        return dict(self._whole(self._rows_of(keys)))

    def damaged_rows(self) -> list[DamagedRow]:
        """Return the rows that cannot be used; every row of the file is read."""
        return [row for _, row in self._all_rows() if isinstance(row, DamagedRow)]

    def remove_damaged_rows(self) -> int:
        """Remove the rows that cannot be used, and return how many there were."""
        with self._database.transaction() as connection:
            damaged = self.damaged_rows()
            query = "DELETE FROM rows WHERE hex(key) IN (SELECT value FROM json_each(?))"
            connection.execute(query, (_hex_keys(damaged),))
        return len(damaged)

    def _all_rows(self) -> Iterator[tuple[str, ResultRow | DamagedRow]]:
        order = "ORDER BY model, dataset, image, target, method"
        for key, *values in self._database.read(f"{_SELECT} {order}"):
            yield key, from_columns(key, values)

    def _rows_of(self, keys: Iterable[str]) -> Iterator[tuple[str, ResultRow | DamagedRow]]:
        for batch in _batches(keys, KEYS_PER_QUERY):
            query = f"{_SELECT} WHERE key IN ({', '.join('?' * len(batch))})"
            for key, *values in self._database.read(query, batch):
                yield key, from_columns(key, values)

    def _whole(
        self, rows: Iterable[tuple[str, ResultRow | DamagedRow]]
    ) -> Iterator[tuple[str, ResultRow]]:
        for key, row in rows:
            if isinstance(row, ResultRow):
                yield key, row
            elif not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"damaged rows of {shown(self.path)} count as missing: {row.problem} (`dmbp "
                    "bench status` lists all of them, `dmbp bench run` computes them again)",
                    stacklevel=2,
                )

    def metrics(self) -> list[str]:
        """Return every metric for which any row has a score."""
        return sorted({metric for row in self.rows() for metric in row.scores})

    def counts(
        self, damaged: Sequence[DamagedRow] | None = None
    ) -> list[tuple[str, str, str, str, int, int]]:
        """Return the number of rows and of failed rows by model, dataset, method and settings.

        Settings are JSON.

        The failures of photos that have been repaired since are not counted.

        Args:
            damaged: The `damaged_rows`, which are not counted; by default they are searched for.
        """
        names = "model, dataset, method, settings"
        return self._read_current(
            f"SELECT {names}, count(*), count(failure) FROM ({_CURRENT_ROWS}) "
            f"GROUP BY {names} ORDER BY {names}",
            damaged,
        )

    def failures(self, damaged: Sequence[DamagedRow] | None = None) -> list[tuple[str, int]]:
        """Return the reasons for failures and how often each occurs, the most frequent first.

        Args:
            damaged: The `damaged_rows`, which are not counted; by default they are searched for.
        """
        return self._read_current(
            f"SELECT failure, count(*) FROM ({_CURRENT_ROWS}) WHERE failure IS NOT NULL "
            "GROUP BY failure ORDER BY count(*) DESC, failure",
            damaged,
        )

    def _read_current(self, query: str, damaged: Sequence[DamagedRow] | None) -> list[Any]:
        left_out = self.damaged_rows() if damaged is None else damaged
        return list(self._database.read(query, (_hex_keys(left_out),)))

    def merge(self, other: Path) -> tuple[int, int]:
        """Add the rows of another file; for a cell in both, a row that succeeded is kept.

        Returns:
            How many of the other file's rows are new, and how many this file had already.
        """
        before, read = len(self), 0
        source = Store(other, read_only=True)
        try:
            for rows in _batches(source.rows(), ROWS_PER_MERGE):
                self.add(rows)
                read += len(rows)
            added = len(self) - before
            return added, read - added
        finally:
            source.close()

    def __len__(self) -> int:
        return next(number for (number,) in self._database.read("SELECT COUNT(*) FROM rows"))


def _hex_keys(rows: Iterable[DamagedRow]) -> str:
    return json.dumps([row.hex_key for row in rows])


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


HEX_DIGITS = re.compile("[0-9a-f]+")


class DigestCache:
    """Digests of photo files, valid until a file's size or modification time changes.

    They are kept in the same file as the results, so that a run of fifty thousand photos does not
    read them all again when it is continued.
    """

    def __init__(self, database: "Database") -> None:
        self._database = database

    def get(self, path: Path) -> str | None:
        """Return the digest of a file, or None if it is unknown, damaged or out of date."""
        version = _file_version(path)
        if version is None:
            return None
        query = "SELECT digest FROM digests WHERE path = ? AND size = ? AND changed = ?"
        found = [digest for (digest,) in self._database.read(query, (_key(path), *version))]
        is_whole = found and isinstance(found[0], str) and HEX_DIGITS.fullmatch(found[0])
        return found[0] if is_whole else None

    def put(self, digests: Mapping[Path, str]) -> None:
        """Remember the digests of files, except of files that have vanished meanwhile.

        Nothing is remembered if the store cannot be written.
        """
        if self._database.is_read_only:
            return
        versions = {path: _file_version(path) for path in digests}
        rows = [
            (_key(path), *version, digests[path]) for path, version in versions.items() if version
        ]
        with self._database.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)", rows)


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
        if not is_missing(path):
            check_file(path, what="file of results", error=InputError, may_be_empty=True)
        self.is_read_only = read_only and not _is_writable(path)
        with self._errors_translated():
            self.connection = sqlite3.connect(
                _read_only_address(path) if self.is_read_only else path,
                timeout=LOCK_TIMEOUT,
                isolation_level=None,
                uri=self.is_read_only,
            )
            self.connection.text_factory = _text_or_bytes
            if not self.is_read_only:
                self._create_tables()
            self._check_version()
            self._check_tables()

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def read(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows that a query selects; text that is not UTF-8 is given as bytes."""
        with self._errors_translated("read"):
            for row in self.connection.execute(query, values):  # noqa: UP028, a cursor must not be
                yield row  # closed after the file, which `yield from` does

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Write what is executed on the connection inside, all or none."""
        with self._errors_translated(), self._transaction():
            yield self.connection

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
            raise InputError(f"{shown(self._path)} is a database, but not one of dmbp's benchmarks")
        if version != SCHEMA_VERSION:
            raise InputError(
                f"{shown(self._path)} was written by another version of dmbp (layout {version}, "
                f"here {SCHEMA_VERSION}); use that version, or begin a new file"
            )

    def _check_tables(self) -> None:
        """Check the columns of the tables, so that every query can be executed."""
        query = (
            "SELECT t.name, t.type, t.pk FROM sqlite_master AS m, pragma_table_info(m.name) AS t "
            "WHERE m.type = 'table' AND m.name = ? ORDER BY t.cid"
        )
        for table, columns in _COLUMNS_OF_TABLES.items():
            if self.connection.execute(query, (table,)).fetchall() != columns:
                raise InputError(
                    f"{shown(self._path)} is damaged: its table {table!r} is missing or has other "
                    f"columns than a file of results; {WHAT_TO_DO}"
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
    def _errors_translated(self, attempt: str = "write to") -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            path, reason = shown(self._path), str(error)
            if "not a database" in reason or "malformed" in reason:
                raise InputError(
                    f"{path} is not a database that can be read; {WHAT_TO_DO}"
                ) from error
            raise OutputError(f"cannot {attempt} {path}: {reason}") from error
        except UnicodeDecodeError as error:  # SQLite's message quotes a name of a damaged schema
            raise InputError(
                f"{shown(self._path)} is not a database that can be read; {WHAT_TO_DO}"
            ) from error


def _text_or_bytes(raw: bytes) -> str | bytes:
    """Decode text of a file; if the file is damaged, it may not be UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _is_writable(path: Path) -> bool:
    """Return whether SQLite can write the file, and its log beside it."""
    return os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK)


def _read_only_address(path: Path) -> str:
    """Return a URI for reading a file, with its log if a run left one, else without locks."""
    log = path.with_name(f"{path.name}-wal")
    has_log = log.is_file() and log.stat().st_size > 0
    return f"{path.absolute().as_uri()}?{'mode=ro' if has_log else 'immutable=1'}"
