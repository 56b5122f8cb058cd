"""Runs of a benchmark in processes of their own, which can be killed."""

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from dmbp.bench import Store
from dmbp.errors import DMBPError
from dmbp.process import end_with_parent
from tests.conftest import ROOT


def start(plan: Path, store: Path, *given: str, limit: int | None = None) -> subprocess.Popen[str]:
    """Start `dmbp bench run` in a process of its own, whose files may have `limit` bytes."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
    command = (limited if limit else "") + "from dmbp.cli import app; app()"
    arguments = [
        "bench",
        "run",
        str(plan),
        "--store",
        str(store),
        "--batch",
        "1",
        "--quiet",
        *given,
    ]
    return subprocess.Popen(
        [sys.executable, "-c", command, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a process, and what it printed."""
    _, said = process.communicate(timeout=180)
    return process.returncode, " ".join(said.split())


def sleep_until_the_parent_ends() -> None:
    """Sleep in a process that multiprocessing has started, much longer than any test."""
    end_with_parent()
    time.sleep(600)


PARENT = """
from multiprocessing import get_context
from tests.bench.processes import sleep_until_the_parent_ends
child = get_context("spawn").Process(target=sleep_until_the_parent_ends)
child.start()
print(child.pid, flush=True)
child.join()
"""


def wait_for_more(store: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a run has written more rows, or has ended."""
    before, deadline = count(store), time.monotonic() + 60
    while count(store) <= before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.03)


def count(store: Path) -> int:
    """Return the number of rows in a store, 0 if there is none yet."""
    if not store.exists():
        return 0
    try:
        with closing(Store(store)) as results:
            return sum(1 for _ in results.rows())
    except DMBPError:  # it is being created
        return 0


def children(pid: int) -> list[int]:
    """Return the processes that a run has started, if the system tells."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


def workers_of(pid: int) -> list[int]:
    """Return the workers of a run; multiprocessing's tracker is not one."""
    return [child for child in children(pid) if b"spawn_main" in _command(child)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def all_gone(pids: list[int], *, seconds: float = 20) -> bool:
    """Return whether all processes end within some seconds."""
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
