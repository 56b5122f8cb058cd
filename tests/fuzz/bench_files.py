"""Plans, datasets and files of results: every file that `dmbp bench` reads, damaged."""

import os
import shutil
import sqlite3
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import PLAN, Case, Stock
from tests.fuzz.damage import (
    FLOATS,
    INTEGERS,
    TEXTS,
    damaged_bytes,
    damaged_tree,
    with_nested_lists,
)

COMMANDS = (
    ["run", "plan.toml"],
    ["run", "plan.toml", "--retry"],
    ["status", "--plan", "plan.toml"],
    ["table", "plan.toml"],
    ["table", "plan.toml", "--format", "latex"],
    ["plot", "plan.toml", "plot.png"],
)
STORE_COMMANDS = (
    *COMMANDS,
    ["status"],
    ["export", "rows.csv"],
    ["export", "rows.parquet"],
    ["repair"],
    ["merge", "other.sqlite"],
)


def _copy(stock: Stock, folder: Path) -> None:
    """Copy an ordinary benchmark into a folder."""
    shutil.copytree(stock.path("photos"), folder / "photos")
    shutil.copy(stock.path("plan.toml"), folder)
    shutil.copy(stock.path("store.sqlite"), folder)
    shutil.copy(stock.path("store.sqlite"), folder / "other.sqlite")


def _bench(command: list[str]) -> list[str]:
    return ["bench", *command, "--store", "store.sqlite"]


def make_plan_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command that reads a damaged plan."""
    _copy(stock, folder)
    path = folder / "plan.toml"
    draw = rng.random()
    if draw < 0.3:
        content, note = damaged_bytes(rng, path.read_bytes())
        path.write_bytes(content)
    elif draw < 0.5:
        note = rng.choice(RAW_ENTRIES)
        lines = path.read_text().splitlines()
        lines.insert(rng.randrange(len(lines) + 1), note)
        path.write_text("\n".join(lines), encoding="utf-8")
    else:
        note = "changed entries"
        tree = damaged_tree(rng, _full_plan(rng, path))
        path.write_text(
            with_nested_lists(toml_lines(tree)), encoding="utf-8", errors="surrogateescape"
        )
    return Case(_bench(rng.choice(COMMANDS)), f"plan: {note[:60]}")


def _full_plan(rng: Random, path: Path) -> Any:
    """Return a plan in which every kind of entry may be present."""
    plan = tomllib.loads(path.read_text())
    optional = {"fit": "squeeze", "classes": "names.txt", "weights": "photos"}
    plan["tasks"][0] |= {k: v for k, v in optional.items() if rng.random() < 0.2}
    if rng.random() < 0.5:
        settings = {"iterations": 2, "preset": "fast", "sites": "*", "smooth": "secant"}
        plan["methods"].append({"name": "dmbp", "label": "D", "settings": settings})
    if rng.random() < 0.5:
        plan["methods"].append({"name": "rise", "settings": {"masks": 4, "cells": 3}})
    plan["settings"] = {"gradient": {}}
    plan["paper"] = "comparison"
    return plan


RAW_ENTRIES = (
    "x = " + "[" * 3000,
    "x = " + "9" * 5000,
    "x = 1979-05-27T07:32:00",
    "x = 07:32:00",
    "methods = 07:32:00",
    "[settings.dmbp]\niterations = 100000000000000000000",
    "[settings.rise]\nmasks = 1000000000000",
    "[settings.integrated_gradients]\nsteps = 1000000000",
    "[settings.smoothgrad]\nsamples = 1000000000",
    '[[tasks]]\nname = "again"',
    "tasks = 3",
    "methods = [" + '"random",' * 3000 + "]",
    "a" + ".a" * 3000 + " = 1",
    "first = 0",
    '"\\u0000" = 1',
)


def toml_lines(tree: Mapping[str, Any]) -> str:
    """Return a tree as TOML; what TOML cannot express becomes text."""
    return "\n".join(f"{_text(key)} = {_inline(value)}" for key, value in tree.items())


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    return _text("none" if value is None else str(value))


def _text(text: str) -> str:
    escaped = (f"\\u{ord(c):04x}" if ord(c) < 32 or c in '"\\' else c for c in text)
    return f'"{"".join(escaped)}"'


def make_dataset_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command about a dataset in one of its layouts, damaged."""
    _copy(stock, folder)
    (folder / "store.sqlite").unlink()
    kind = rng.choice(list(DATASETS))
    path, note = DATASETS[kind](rng, folder)
    (folder / "plan.toml").write_text(PLAN.format(dataset=kind, path=path))
    return Case(_bench(["run", "plan.toml"]), f"{kind}: {note}")


def _manifest(rng: Random, folder: Path) -> tuple[str, str]:
    rows = [["photos/cat/00000.png", "cat"], ["photos/dog/00001.png", "1"]]
    draw = rng.choice(("bytes", "cell", "cell", "column", "lines"))
    if draw == "cell":
        row = rng.choice(rows)
        row[rng.randrange(2)] = rng.choice((*TEXTS, "cat;dog;", ";", "-5", "9" * 40, '"', "dog;1"))
    columns = rng.choice((["file"], ["label"], [], ["file", "label", "file"], ["FILE", "label"]))
    header = columns if draw == "column" else ["file", "label"]
    lines = [header, *rows, *([[], ["x"], ["a", "b", "c"]] if draw == "lines" else [])]
    text = "\n".join(",".join(line) for line in lines) + "\n"
    content = text.encode(errors="surrogateescape")
    if draw == "bytes":
        content, draw = damaged_bytes(rng, content)
    (folder / "list.csv").write_bytes(content)
    if rng.random() < 0.1:
        os.remove(folder / "list.csv")
        return rng.choice(("/dev/zero", "photos", "nowhere.csv")), "not a file"
    return "list.csv", draw


def _folder(rng: Random, folder: Path) -> tuple[str, str]:
    draw = rng.choice(("photo", "name", "pipe", "empty", "file", "loop"))
    photo = folder / "photos" / "cat" / "00000.png"
    if draw == "photo":
        photo.write_bytes(damaged_bytes(rng, photo.read_bytes())[0])
    elif draw == "name":
        names = (b"caf\xe9", b"$\\nosuch$", b"n" * 255, b" ", b"[red]", b"\x1b[31m")
        photo.parent.rename(folder / "photos" / os.fsdecode(rng.choice(names)))
    elif draw == "pipe":
        os.mkfifo(photo.parent / "pipe.jpg")
    elif draw == "empty":
        shutil.rmtree(folder / "photos")
        (folder / "photos").mkdir()
    elif draw == "file":
        return "plan.toml", draw
    else:
        (folder / "photos" / "loop").symlink_to("loop")
    return "photos", draw


ANNOTATION = """<annotation><size><width>16</width><height>16</height></size>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin>
<xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"""

LAUGHS = (
    '<!DOCTYPE a [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{k + 1} "{f"&a{k};" * 10}">' for k in range(9))
    + "]><annotation><size><width>&a9;</width></size></annotation>"
)
"""Entities that would expand to gigabytes."""


def _voc(rng: Random, folder: Path) -> tuple[str, str]:
    root = folder / "voc"
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    shutil.copy(folder / "photos" / "cat" / "00000.png", root / "JPEGImages" / "a.jpg")
    draw = rng.choice(("bytes", "entities", "number", "list", "name", "pipe"))
    content = ANNOTATION.encode()
    if draw == "bytes":
        content = damaged_bytes(rng, content)[0]
    elif draw == "entities":
        content = LAUGHS.encode()
    elif draw == "number":
        old = rng.choice((b">16<", b">1<", b">9<", b">0<", b">cat<"))
        new = rng.choice((b"0", b"-1", b"nan", b"1e400", b"9" * 5000, b"", b"x"))
        content = content.replace(old, b">" + new + b"<")
    (root / "Annotations" / "a.xml").write_bytes(content)
    if draw == "list":
        text = rng.choice((b"a\n", b"b\n", b"\xff\xfe", b"", b"a " * 9999))
        (root / "ImageSets" / "Main" / "val.txt").write_bytes(text)
    elif draw == "name":
        (root / "Annotations" / os.fsdecode(b"\xe9.xml")).write_text(ANNOTATION)
    elif draw == "pipe":
        os.mkfifo(root / "Annotations" / "b.xml")
    return "voc", draw


def _imagenet(rng: Random, folder: Path) -> tuple[str, str]:
    root = folder / "imagenet"
    root.mkdir()
    name = "ILSVRC2012_val_00000001.JPEG"
    shutil.copy(folder / "photos" / "cat" / "00000.png", root / name)
    draw = rng.choice(("val.txt", "ILSVRC2012_validation_ground_truth.txt", "synsets", "none"))
    lines = (f"{name} 1", f"{name} -1", f"{name} " + "9" * 5000, name, "1", "٣", "", "\0", "1 2 3")
    if draw == "synsets":
        (root / "n01440764").mkdir()
        shutil.move(root / name, root / "n01440764" / name)
        (root / "synsets.txt").write_text(
            "\n".join(f"n{k:08d}" for k in range(rng.choice((0, 5, 1000))))
        )
    elif draw != "none":
        content = rng.choice(lines).encode()
        (root / draw).write_bytes(rng.choice((content, damaged_bytes(rng, content)[0])))
        if rng.random() < 0.5:
            text = "\n".join(f"n{k:08d}" for k in range(1000))
            (root / "synsets.txt").write_text(text + rng.choice(("", "\nx", "\n")))
    return "imagenet", draw


DATASETS: Mapping[str, Callable[[Random, Path], tuple[str, str]]] = {
    "manifest": _manifest,
    "folder": _folder,
    "voc": _voc,
    "voc-not-difficult": _voc,
    "imagenet": _imagenet,
    "imagenet-5k": _imagenet,
}
"""Writes a dataset; returns what a plan calls its path, and what was done to it."""


def make_store_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command that reads a damaged file of results."""
    _copy(stock, folder)
    command = rng.choice(STORE_COMMANDS)
    damaged = folder / ("other.sqlite" if command[0] == "merge" else "store.sqlite")
    way = rng.choice(list(STORES))
    note = STORES[way](rng, damaged)
    return Case(_bench(command), f"store: {way} {note}".strip())


def _store_bytes(rng: Random, path: Path) -> str:
    content, note = damaged_bytes(rng, path.read_bytes())
    path.write_bytes(content)
    return note


def _store_values(rng: Random, path: Path) -> str:
    """Any value in any column: SQLite checks no types."""
    texts = ("{", "[1, 2", "null", "NaN", '{"IM": NaN}', '{"IM": "x"}', '{"IM": 1e999}', "[" * 9999)
    values: list[Any] = [*TEXTS, *texts, *FLOATS, *INTEGERS, None, b"\xff\xfe", b"", '{"IM": []}']
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(rows)")]
        column = rng.choice(columns)
        value = rng.choice(values)
        try:
            where = "" if rng.random() < 0.3 else "LIMIT 1"
            database.execute(
                f"UPDATE rows SET {column} = ? WHERE key IN (SELECT key FROM rows {where})",
                (value,),
            )
        except (OverflowError, UnicodeEncodeError, sqlite3.IntegrityError):
            database.execute(f"UPDATE rows SET {column} = CAST(x'fffe00' AS TEXT) || key")
        if rng.random() < 0.2:
            database.execute("UPDATE digests SET digest = ?", (rng.choice(("", b"\xff", None, 7)),))
    database.close()
    return f"{column} = {str(value)[:30]!r}"


STATEMENTS = (
    "DROP TABLE rows",
    "DROP TABLE digests",
    "ALTER TABLE rows RENAME TO other",
    "ALTER TABLE rows ADD COLUMN more TEXT",
    "ALTER TABLE rows DROP COLUMN seconds",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 99",
    "PRAGMA user_version = -1",
    "DELETE FROM rows",
    "CREATE TRIGGER t BEFORE INSERT ON rows BEGIN SELECT RAISE(ABORT, 'no'); END",
    "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
    "ALTER TABLE rows RENAME TO o; CREATE VIEW rows AS SELECT * FROM o",
    "DROP INDEX by_question",
    "CREATE UNIQUE INDEX u ON rows (method)",
    "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE TABLE rows (x'",
    "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 9999",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA encoding = 'UTF-16'; VACUUM",
)


def _store_schema(rng: Random, path: Path) -> str:
    statement = rng.choice(STATEMENTS)
    database = sqlite3.connect(path)
    with suppress(sqlite3.Error):  # SQLite refuses some of them itself
        database.executescript(statement)
    database.close()
    return statement


def _store_place(rng: Random, path: Path) -> str:
    """Something else in the file's place."""
    path.unlink()
    draw = rng.choice(("folder", "pipe", "loop", "device", "text", "nothing", "log"))
    if draw == "folder":
        path.mkdir()
    elif draw == "pipe":
        os.mkfifo(path)
    elif draw == "loop":
        path.symlink_to(path.name)
    elif draw == "device":
        path.symlink_to("/dev/zero")
    elif draw == "text":
        path.write_text("hello")
    elif draw == "log":
        path.with_name(f"{path.name}-wal").write_bytes(rng.randbytes(5000))
        path.touch()
    return draw


STORES: Mapping[str, Callable[[Random, Path], str]] = {
    "bytes": _store_bytes,
    "values": _store_values,
    "values again": _store_values,
    "schema": _store_schema,
    "place": _store_place,
}
"""Ways to damage a file of results; each returns what it drew."""
