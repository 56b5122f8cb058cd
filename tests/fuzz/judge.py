"""Runs a command in this process, and says what is wrong with how it ended.

A command ends well with exit code 0 and whole files, or with exit code 2 (1 if a benchmark has
failures) and one sentence.
"""

import json
import os
import re
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy
from PIL import Image

from dmbp.cli import OTHER_MODELS
from tests.fuzz.case import MARK

TRACEBACK = "traceback"
BUG = "called a bug"
HANG = "hang"
CRASH = "process ended"
HALF_WRITTEN = "half-written file"
EXIT_CODE = "wrong exit code"
WORDS = "not one sentence"
EXECUTED = "code executed"
MEMORY = "too much memory"
PROBLEMS = (TRACEBACK, BUG, CRASH, HANG, HALF_WRITTEN, EXIT_CODE, WORDS, EXECUTED, MEMORY)
"""What may be wrong with a try."""

MOST_MEMORY = 3 * 2**30
"""Bytes that a command may take, with its worker processes."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, what it printed, and an exception that it let through."""

    code: int | None
    out: str
    err: str
    exception: str = ""


@dataclass
class Outcome:
    """A try, how it ended, and what is wrong with that."""

    index: int
    kind: str
    arguments: Sequence[str] = ()
    note: str = ""
    ended: Ended = field(default_factory=lambda: Ended(None, "", ""))
    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    seconds: float = 0.0
    peak: int = 0


def run_command(arguments: Sequence[str], output: Path) -> Ended:
    """Run `dmbp` in the current folder; what it prints goes to files in the folder `output`."""
    from dmbp.cli import app

    code: Any = 0
    exception = ""
    with _redirected(output / "out", output / "err"):
        try:
            app(list(arguments), prog_name="dmbp")
        except SystemExit as exit:
            code = exit.code
        except BaseException:
            code, exception = 1, traceback.format_exc()
    texts = [(output / name).read_text(errors="replace") for name in ("out", "err")]
    return Ended(code or 0, *texts, exception)


@contextmanager
def _redirected(out: Path, err: Path) -> Generator[None]:
    """Send what this process and its libraries print to files."""
    targets = {1: out, 2: err}
    streams = (sys.stdout, sys.stderr)
    saved = {number: os.dup(number) for number in targets}
    files = {number: path.open("wb") for number, path in targets.items()}
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    try:
        for number, file in files.items():
            os.dup2(file.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = streams
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        for file in files.values():
            file.close()


def listed(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the files in a folder with their size and time, so that new ones can be told."""
    found: dict[Path, tuple[int, int]] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            status = path.lstat()
            found[path] = status.st_size, status.st_mtime_ns
    return found


def judge(
    arguments: Sequence[str], ended: Ended, folder: Path, before: Mapping[Path, object]
) -> list[tuple[str, str]]:
    """Return what is wrong with how a command ended, as pairs of a problem and details."""
    after = listed(folder)
    new = [path for path, version in after.items() if before.get(path) != version]
    problems = [(HALF_WRITTEN, f"{path.name}: {why}") for path, why in _broken(new)]
    if any(path.name == MARK for path in after):
        problems.append((EXECUTED, MARK))
    if ended.exception:
        return [*problems, (TRACEBACK, ended.exception)]
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return [*problems, (TRACEBACK, ended.err + ended.out)]
    if "this is a bug in dmbp" in ended.err:
        return [*problems, (BUG, ended.err)]
    if "there is not enough memory" in ended.err:
        return [*problems, (MEMORY, ended.err)]
    problems += [(EXIT_CODE, why) for why in _wrong_code(arguments, ended, new)]
    problems += [(WORDS, why) for why in _wrong_words(arguments, ended)]
    return problems


def _broken(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the files that were not written to their end, with reasons."""
    broken: list[tuple[Path, str]] = []
    for path in paths:
        try:
            if path.name.endswith(".part"):
                raise ValueError("left behind under its temporary name")
            READERS.get(path.suffix, lambda _: None)(path)
        except Exception as error:
            broken.append((path, f"{type(error).__name__}: {error}"))
    return broken


def _read_picture(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


def _read_ended(end: bytes) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        if not path.read_bytes().rstrip().endswith(end):
            raise ValueError(f"it does not end with {end!r}")

    return read


def _read_parquet(path: Path) -> None:
    import pyarrow.parquet

    pyarrow.parquet.read_table(path)


READERS: Mapping[str, Callable[[Path], object]] = {
    ".png": _read_picture,
    ".gif": _read_picture,
    ".json": lambda path: json.loads(path.read_text()),
    ".npy": numpy.load,
    ".svg": ElementTree.parse,
    ".html": _read_ended(b"</html>"),
    ".pdf": _read_ended(b"%%EOF"),
    ".parquet": _read_parquet,
    ".csv": lambda path: path.read_text(encoding="utf-8"),
}
"""How each kind of file that dmbp writes is read again."""


def _command(arguments: Sequence[str]) -> str:
    words = [word for word in arguments[:2] if word != "--debug"]
    return " ".join(words) if words[:1] == ["bench"] else words[0]


def _wrong_code(arguments: Sequence[str], ended: Ended, new: Sequence[Path]) -> list[str]:
    command, suffixes = _command(arguments), {path.suffix for path in new}
    if ended.code not in (0, 1, 2):
        return [f"{ended.code}"]
    if ended.code == 1 and command != "bench run":
        return [f"1 without a bug: {ended.err}"]
    if ended.code:
        return []
    if command in ("explain", "compare", "sanity", "boxes"):
        pictures = {".png", ".svg", ".pdf"}
        if ".json" not in suffixes or not suffixes & pictures:
            return ["0 without a picture and a JSON file"]
    if command in ("bench plot", "bench export") and not new:
        return ["0 without a file"]
    if command == "bench run":
        return _unreadable_stores(arguments)
    if command in ("doctor", "models", "methods", "bench table", "bench repair") and not ended.out:
        return ["0 without output"]
    return []


def _unreadable_stores(arguments: Sequence[str]) -> list[str]:
    name = "dmbp-bench.sqlite"
    for option, value in pairwise(arguments):
        name = value if option == "--store" else name
    try:
        database = sqlite3.connect(f"file:{Path(name).absolute().as_posix()}?mode=ro", uri=True)
        database.execute("SELECT count(*) FROM rows").fetchone()
        database.close()
    except sqlite3.Error as error:
        return [f"0, but {name} cannot be read: {error}"]
    return []


SENTENCE = re.compile(r"dmbp: \S.*")
NOTE = re.compile(r"note: \S.*")


def _wrong_words(arguments: Sequence[str], ended: Ended) -> list[str]:
    """Return why standard error is not notes and, after an error, one sentence."""
    lines = ended.err.split("\n")[:-1] if ended.err.endswith("\n") else ended.err.split("\n")
    lines = [line for line in lines if line] if ended.err.strip() else []
    if lines[:1] and lines[0].startswith("Usage: "):
        is_usage = ended.code == 2 and any(line.startswith("Error: ") for line in lines)
        return [] if is_usage else [f"usage without an error: {ended.err}"]
    if _command(arguments) == "models":  # it says there what else is a model's name
        lines = [line for line in lines if line not in OTHER_MODELS.splitlines()]
    others = [line for line in lines if not NOTE.fullmatch(line)]
    prints_refusals = _command(arguments) == "doctor" and bool(ended.out)
    if ended.code == 0 or ended.code == 1 or (prints_refusals and not others):
        return [f"printed beside notes: {others}"] if others else []
    is_sentence = len(others) == 1 and lines[-1] == others[0] and SENTENCE.fullmatch(others[0])
    return [] if is_sentence else [f"{ended.err!r}"]


def run_case(
    outcome: Outcome, arguments: Sequence[str], folder: Path, *, tree: Path, output: Path
) -> Outcome:
    """Run a command in a folder, judge what it wrote in a tree, and fill in the outcome."""
    before = listed(tree)
    started = time.perf_counter()
    os.chdir(folder)
    outcome.ended = run_command(arguments, output)
    outcome.seconds = time.perf_counter() - started
    outcome.problems = judge(arguments, outcome.ended, tree, before)
    return outcome
