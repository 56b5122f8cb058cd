"""The store: no row is lost or written twice, whatever happens in between."""

import os
import random
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from dmbp.bench import Cell, ResultRow, Store
from dmbp.errors import InputError, OutputError
from tests.bench.cells import CELL, cells

CURVE = [0.1] * 28 + [0.9]
SETTINGS = '{"signed": true}'


def failed_by_key(store: Store, keys: Iterable[str]) -> dict[str, bool]:
    return {key: row.failure is not None for key, row in store.rows_by_key(keys).items()}


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    row = ResultRow(CELL, {"IM": 0.5}, {"IM": CURVE}, seconds=0.25)
    failed = ResultRow(replace(CELL, method="dmbp"), failure="it does not fit into memory")
    store.add([row, failed])
    assert list(store.rows()) == [failed, row]  # by method
    store.close()
    assert list(Store(tmp_path / "s.sqlite").rows()) == [failed, row]


@pytest.mark.parametrize(
    "change",
    [
        {"photo": "p2"},
        {"target": "dog"},
        {"weights": "w2"},
        {"method": "dmbp"},
        {"settings": {"signed": False}},
        {"scoring": {"steps": 10}},
        {"image": "b"},
    ],
)
def test_all_that_determines_a_result_is_in_the_key(change: dict[str, object]) -> None:
    assert replace(CELL, **change).key != CELL.key


def test_names_of_dataset_and_model_are_not_in_the_key() -> None:
    assert replace(CELL, dataset="folder", model="mine").key == CELL.key
    assert replace(CELL, settings=dict(reversed(CELL.settings.items()))).key == CELL.key


def test_keys_stay_as_they_were() -> None:
    """Results of earlier versions are found: a key may change only with `RESULTS_VERSION`."""
    assert CELL.key == "b7070eb2d7cfc3f6fd042650eaa610a5"
    cell = Cell(
        dataset="folder",
        image="é/1.png",
        photo="0123456789abcdef",
        target="7",
        model="voc160",
        weights="fedcba9876543210",
        method="dmbp",
        settings={"iterations": 2, "sites": ["*"], "learning_rate": 1},
        scoring={
            "metrics": ["IM", "cIM"],
            "steps": 28,
            "activation": "sigmoid",
            "others": [3, 1],
            "seen": [176, 160, "crop", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 2],
        },
    )
    assert cell.key == "d2abdaaf3af69b004459373f80df3907"


LAYOUT_1 = """
CREATE TABLE rows (
    key TEXT PRIMARY KEY, dataset TEXT, image TEXT, photo TEXT, target TEXT, model TEXT,
    weights TEXT, method TEXT, settings TEXT, scoring TEXT,
    scores TEXT, curves TEXT, seconds REAL, failure TEXT, written REAL
) WITHOUT ROWID;
CREATE INDEX by_question ON rows (model, dataset, method);
CREATE TABLE digests (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, digest TEXT);
INSERT INTO rows VALUES (
    'b7070eb2d7cfc3f6fd042650eaa610a5', 'voc', 'a', 'p1', 'cat', 'resnet50', 'w1', 'gradcam',
    '{"signed": true}', '{"steps": 28}', '{"IM": 0.5}', '{"IM": CURVE}', 0.25, NULL, 7.5
);
PRAGMA user_version = 1;
""".replace("CURVE", str(CURVE))


def test_a_file_of_layout_1_is_read_and_continued(tmp_path: Path) -> None:
    """As the first version with this layout wrote it."""
    path = tmp_path / "s.sqlite"
    old = sqlite3.connect(path)
    old.executescript(LAYOUT_1)
    old.close()
    store = Store(path)
    row = ResultRow(CELL, {"IM": 0.5}, {"IM": CURVE}, seconds=0.25)
    assert list(store.rows()) == [row]
    assert next(store.rows()).written == 7.5
    assert failed_by_key(store, [CELL.key]) == {CELL.key: False}
    store.add([ResultRow(replace(CELL, method="dmbp"), failure="no memory")])
    assert store.counts() == [
        ("resnet50", "voc", "dmbp", SETTINGS, 1, 1),
        ("resnet50", "voc", "gradcam", SETTINGS, 1, 0),
    ]


def test_a_success_stays_and_a_failure_is_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.add([ResultRow(CELL, failure="no memory")])
    assert failed_by_key(store, [CELL.key, "other"]) == {CELL.key: True}
    store.add([ResultRow(CELL, {"IM": 0.5})])
    store.add([ResultRow(CELL, {"IM": 0.9}), ResultRow(CELL, failure="later")])
    assert [dict(row.scores) for row in store.rows()] == [{"IM": 0.5}]
    assert failed_by_key(store, [CELL.key]) == {CELL.key: False}


def test_many_keys_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    many = cells(2500)
    store.add(ResultRow(cell, {"IM": 0.1}) for cell in many[:1700])
    assert failed_by_key(store, (cell.key for cell in many)).keys() == {
        cell.key for cell in many[:1700]
    }


def test_two_stores_merge(tmp_path: Path) -> None:
    one, other = Store(tmp_path / "1.sqlite"), Store(tmp_path / "2.sqlite")
    a, b, c = cells(3)
    one.add([ResultRow(a, {"IM": 0.1}), ResultRow(b, failure="no memory")])
    other.add(
        [ResultRow(a, {"IM": 0.7}), ResultRow(b, {"IM": 0.2}), ResultRow(c, failure="broken photo")]
    )
    one.merge(tmp_path / "2.sqlite")
    found = {row.cell.key: row for row in one.rows()}
    assert found[a.key].scores == {"IM": 0.1}
    assert found[b.key].scores == {"IM": 0.2}
    assert found[c.key].failure == "broken photo"


WRITER = """
    import sys
    from dataclasses import replace
    from pathlib import Path
    from dmbp.bench import ResultRow, Store
    from tests.bench.cells import cells

    store = Store(Path(sys.argv[1]))
    many = cells(400)[int(sys.argv[2]) :: 2] + cells(40)  # some are written by both
    for k in range(0, len(many), 4):
        store.add(ResultRow(cell, {"IM": 0.5}) for cell in many[k : k + 4])
        print(k, flush=True)
"""


def writer(path: Path, start: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path), str(start)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with writer(path, 0) as one, writer(path, 1) as other:
        one.communicate(timeout=120)
        other.communicate(timeout=120)
    assert [one.returncode, other.returncode] == [0, 0]
    assert len(list(Store(path).rows())) == 400


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    for k in range(60):  # one in twenty met a lock that SQLite does not wait for
        start = Barrier(8)

        def open_it(path: Path = tmp_path / f"{k}.sqlite", start: Barrier = start) -> None:
            start.wait()
            Store(path).close()

        with ThreadPoolExecutor(8) as threads:
            for opened in [threads.submit(open_it) for _ in range(8)]:
                opened.result()


def test_a_killed_process_leaves_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with writer(path, 0) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.kill()
    count = len(list(Store(path).rows()))
    assert count >= 20
    assert count % 4 == 0


def test_a_full_disk_is_an_error_and_leaves_the_rows(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.add([ResultRow(CELL, {"IM": 0.5})])
    connection = store._database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OutputError, match=r"cannot write to .*s\.sqlite: database or disk is full"):
        store.add(ResultRow(cell, {"IM": 0.5}, {"IM": [0.1] * 100}) for cell in cells(500))
    assert len(list(store.rows())) == 1


def test_files_that_are_not_a_store(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, but long enough to be looked at " * 50)
    with pytest.raises(InputError, match="is not a database that can be read"):
        Store(text)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE things (name TEXT)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="not one of dmbp's benchmarks"):
        Store(tmp_path / "other.sqlite")
    Store(tmp_path / "old.sqlite").close()
    old = sqlite3.connect(tmp_path / "old.sqlite")
    old.execute("PRAGMA user_version = 7")
    old.close()
    with pytest.raises(InputError, match=r"another version of dmbp \(layout 7, here 1\)"):
        Store(tmp_path / "old.sqlite")
    with pytest.raises(OutputError, match="unable to open database file"):
        Store(tmp_path / "nowhere" / "s.sqlite")


def test_an_error_while_tables_are_created_leaves_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the tables would be taken for a database of another program."""
    path = tmp_path / "s.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr("dmbp.bench.store._SCHEMA", "CREATE TABLE rows (key TEXT); CREATE nothing")
        with pytest.raises(OutputError, match="syntax error"):
            Store(path)
    store = Store(path)
    store.add([ResultRow(CELL, {"IM": 0.5})])
    assert len(store) == 1


def test_digests_are_forgotten_when_a_file_changes(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    file = tmp_path / "a.jpg"
    file.write_bytes(b"one")
    assert store.digests.get(file) is None
    store.digests.put({file: "d1"})
    assert store.digests.get(file) == "d1"
    file.write_bytes(b"other")
    assert store.digests.get(file) is None


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    """Its first page is intact, so it opens; the rest is not."""
    path = tmp_path / "s.sqlite"
    store = Store(path)
    store.add([ResultRow(replace(CELL, image=str(k))) for k in range(200)])
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(byte ^ 0x5A for byte in data[4096:])
    path.write_bytes(data)
    for read in (Store.counts, Store.metrics, Store.failures, lambda s: list(s.rows())):
        with pytest.raises(InputError, match="is not a database that can be read"):
            read(Store(path))


def test_a_failure_on_a_repaired_photo_is_not_counted(tmp_path: Path) -> None:
    """Unless the photo broke after it had succeeded; a merge does not change when that was."""
    broken, other = replace(CELL, photo="broken"), replace(CELL, image="b")
    stores = [Store(tmp_path / name) for name in ("first", "second", "both")]
    stores[0].add(
        [ResultRow(broken, failure="no photo", written=1.0), ResultRow(other, failure="no memory")]
    )
    assert stores[0].counts() == [("resnet50", "voc", "gradcam", SETTINGS, 2, 2)]
    stores[1].add([ResultRow(CELL, {"IM": 0.5}, written=2.0)])
    for order in ((1, 0), (0, 1)):
        for k in order:
            stores[2].merge(stores[k].path)
        assert stores[2].counts() == [("resnet50", "voc", "gradcam", SETTINGS, 2, 1)]
        assert stores[2].failures() == [("no memory", 1)]
    stores[1].add([ResultRow(broken, failure="no photo", written=3.0)])
    assert stores[1].failures() == [("no photo", 1)]


def test_a_store_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file beside it; with the log of a run that was killed, its rows too."""
    path = tmp_path / "s.sqlite"
    store = Store(path)
    store.add([ResultRow(CELL, {"IM": 0.5})])
    monkeypatch.setattr("dmbp.bench.store.os.access", lambda _, mode: mode != os.W_OK)
    during = Store(path, read_only=True)
    assert [row.cell for row in during.rows()] == [CELL]  # from the log
    during.close()
    store.close()
    before = sorted(tmp_path.iterdir())
    fixed = Store(path, read_only=True)
    fixed.digests.put({path: "d"})
    assert fixed.digests.get(path) is None
    assert [row.cell for row in fixed.rows()] == [CELL]
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(OutputError, match=r"cannot write to .*readonly"):
        fixed.add([ResultRow(replace(CELL, image="b"), failure="no")])


def damage(path: Path, *statements: str) -> None:
    """Execute SQL on a file, as another program could."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


DAMAGES = {
    "JSON": "scores = '{'",
    "NULL": "scoring = NULL",
    "blob": "image = x'00ff'",
    "not UTF-8": "model = CAST(x'61ff' AS TEXT)",
    "failure": "failure = x'ff'",
    "time": "written = 'then'",
}


@pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_row_counts_as_missing_until_it_is_replaced(tmp_path: Path, change: str) -> None:
    path, (a, b, c) = tmp_path / "s.sqlite", cells(3)
    rows = [ResultRow(a, {"IM": 0.1}), ResultRow(b, {"IM": 0.2}), ResultRow(c, failure="no memory")]
    store = Store(path)
    store.add(rows)
    damage(path, f"UPDATE rows SET {change} WHERE key = '{b.key}'")
    with pytest.warns(UserWarning, match=f"count as missing: the row {b.key} .* is damaged: "):
        assert list(store.rows()) == [rows[0], rows[2]]
    assert failed_by_key(store, [a.key, b.key, c.key]) == {a.key: False, c.key: True}
    assert store.counts() == [("resnet50", "voc", "gradcam", SETTINGS, 2, 1)]
    assert store.failures() == [("no memory", 1)]
    assert store.metrics() == ["IM"]
    (damaged,) = store.damaged_rows()
    assert damaged.key == b.key
    store.add([rows[1], ResultRow(a, failure="later")])
    assert list(store.rows()) == rows
    assert store.damaged_rows() == []


@pytest.mark.parametrize("key", ["x'ff00'", "CAST(x'61ff' AS TEXT)", "'other'"])
def test_rows_with_damaged_keys_are_removed(tmp_path: Path, key: str) -> None:
    path, (a, b) = tmp_path / "s.sqlite", cells(2)
    store = Store(path)
    store.add([ResultRow(a, {"IM": 0.1}), ResultRow(b, {"IM": 0.2})])
    damage(path, f"UPDATE rows SET key = {key} WHERE key = '{b.key}'")
    assert store.counts() == [("resnet50", "voc", "gradcam", SETTINGS, 1, 0)]
    assert store.remove_damaged_rows() == 1
    assert [row.cell for row in store.rows()] == [a]
    assert len(store) == 1


def test_a_merge_leaves_damaged_rows_out(tmp_path: Path) -> None:
    path, many = tmp_path / "s.sqlite", cells(3)
    Store(path).add(ResultRow(cell, {"IM": 0.1}) for cell in many)
    damage(path, f"UPDATE rows SET curves = '3' WHERE key = '{many[0].key}'")
    whole = Store(tmp_path / "whole.sqlite")
    with pytest.warns(UserWarning, match="'curves' must be a table, not 3"):
        assert whole.merge(path) == (2, 0)
    assert whole.damaged_rows() == []


@pytest.mark.parametrize(
    ("statements", "table"),
    [
        (["ALTER TABLE rows DROP COLUMN curves"], "rows"),
        (["ALTER TABLE rows RENAME COLUMN curves TO lines"], "rows"),
        (["DROP TABLE rows"], "rows"),
        (["DROP TABLE rows", "CREATE VIEW rows AS SELECT 1 AS key"], "rows"),
        (["DROP TABLE digests"], "digests"),
    ],
)
def test_damaged_tables_are_named(tmp_path: Path, statements: list[str], table: str) -> None:
    path = tmp_path / "s.sqlite"
    Store(path).close()
    damage(path, *statements)
    for read_only in (False, True):
        with pytest.raises(InputError, match=f"its table '{table}' is missing or has other col"):
            Store(path, read_only=read_only)


def test_a_damaged_schema_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = Store(path)
    store._database.connection.execute("PRAGMA journal_mode = DELETE")
    store.close()
    content = path.read_bytes()
    assert b"CREATE INDEX by_question" in content
    path.write_bytes(
        content.replace(b"INDEX by_question", b"INDFX by_quest\xffon").replace(
            b"by_question", b"by_quest\xffon"
        )
    )
    for read_only in (False, True):
        with pytest.raises(InputError, match="is not a database that can be read"):
            Store(path, read_only=read_only)


@pytest.mark.parametrize("digest", ["x'00ff'", "CAST(x'61ff' AS TEXT)", "NULL", "'zz'"])
def test_damaged_digests_are_unknown(tmp_path: Path, digest: str) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.digests.put({store.path: "d1"})
    connection = store._database.connection
    connection.execute(f"UPDATE digests SET digest = {digest}")
    version = store.path.stat()
    connection.execute(
        f"UPDATE digests SET size = {version.st_size}, changed = {version.st_mtime_ns}"
    )
    assert store.digests.get(store.path) is None


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_are_an_error_or_leave_whole_rows(tmp_path: Path, seed: int) -> None:
    """What is read back is what was written, apart from numbers and names not in the key."""
    path, rows = tmp_path / "s.sqlite", [ResultRow(cell, {"IM": 0.5}) for cell in cells(30)]
    store = Store(path)
    store.add(rows)
    store.close()
    noise, data = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(noise.choice((1, 20, 300))):
        data[noise.randrange(len(data))] ^= 1 << noise.randrange(8)
    path.write_bytes(data[: len(data) if seed % 2 else noise.randrange(len(data))])
    try:
        store = Store(path)
        damaged = store.damaged_rows()
        store.counts(damaged)
        store.failures(damaged)
        store.remove_damaged_rows()
        read = {row.cell.key for row in store.rows()}
        store.add(rows)
    except (InputError, OutputError):
        return
    assert read <= {row.cell.key for row in rows}
    assert {row.key for row in damaged}.isdisjoint(read)


def test_paths_that_cannot_be_a_file(tmp_path: Path) -> None:
    loop, folder, pipe = (tmp_path / name for name in ("loop", "folder", "pipe"))
    loop.symlink_to(loop)
    folder.mkdir()
    os.mkfifo(pipe)
    problems = {
        loop: "it is a symbolic link that leads back to itself",
        folder: "it is a folder, not a file of results",
        pipe: "it is a pipe, not a file of results",
        tmp_path / ("n" * 300): "its name is too long",
    }
    for path, problem in problems.items():
        with pytest.raises(InputError, match=f"cannot be read: {problem}"):
            Store(path)


def test_a_store_may_be_closed_before_all_rows_are_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.add(ResultRow(cell) for cell in cells(3))
    rows = store.rows()
    next(rows)
    store.close()
    del rows  # pytest would report an exception
