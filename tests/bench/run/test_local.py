"""Runs on this machine: several processes give the same rows, whichever of them die."""

import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from dmbp.bench import Store
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, Tally, run_plan
from dmbp.bench.run.local import ProcessWorker, parse_devices, threads_per_process
from dmbp.errors import InputError, WorkerError
from tests.bench.processes import PARENT, alive, all_gone
from tests.bench.tiny import make_plan, mark, run_undisturbed, stored_rows
from tests.conftest import ROOT

TWO = ("cpu", "cpu")


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_rows_are_the_same(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=16, model="slow")
    killed: list[int] = []

    def kill_one(tally: Tally) -> None:
        if not killed:
            victim = active_children()[0]
            victim.kill()
            killed.append(victim.pid or 0)

    store = tmp_path / "s.sqlite"
    tally = run_plan(read_plan(plan), store, RunOptions(TWO, batch=2), kill_one)
    assert (tally.total, tally.done, tally.left) == (32, 32, 0)
    assert killed
    assert (stored_rows(store), table(read_plan(plan), store)) == run_undisturbed(plan, batch=2)
    assert not active_children()


@pytest.mark.slow
def test_only_what_kills_every_worker_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmbp.bench.run.pool.MAX_ATTEMPTS", 2)  # each costs a process's start
    plan = make_plan(tmp_path, photos=4, model="deadly", methods=["random"])
    mark(tmp_path / "photos" / "cat" / "00002.png")
    tally = run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions(TWO, batch=1))
    assert (tally.done, tally.failed, tally.left) == (3, 1, 0)
    ((failure, count),) = Store(tmp_path / "s.sqlite").failures()
    assert failure == "2 workers in a row were lost over it; the last was killed by signal 9"
    assert count == 1


def test_workers_that_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.bench.run.worker_process.main", print)  # ends at once, without a word
    plan = read_plan(make_plan(tmp_path, photos=2))
    with pytest.raises(WorkerError, match="workers for cpu do not start: the last ended with"):
        run_plan(plan, tmp_path / "s.sqlite", RunOptions(TWO))
    assert not active_children()


def test_a_run_that_ends_early_leaves_no_process(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=4)

    def stop(tally: Tally) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions(TWO, batch=1), stop)
    deadline = time.monotonic() + 20
    while active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not active_children()
    assert len(stored_rows(tmp_path / "s.sqlite")) >= 1


def _never_end(pipe: object, device: str, threads: int) -> None:
    """Ends on nothing but a signal, as in a call into a driver."""
    time.sleep(600)


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.bench.run.local.worker_main", _never_end)
    monkeypatch.setattr("dmbp.bench.run.local.EXIT_TIMEOUT", 0.2)
    worker = ProcessWorker("cpu", 1)
    started = time.monotonic()
    worker.end()
    assert worker.exit_reason == "was killed by signal 9"
    assert time.monotonic() - started < 60
    assert not worker.process.is_alive()


def test_threads_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [threads_per_process(count) for count in (1, 3, 16)] == [8, 2, 1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_with_its_driver(number: int) -> None:
    """Also while it imports PyTorch, before it reads from its pipe; this one never does."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(number)
    assert all_gone([child])


def test_devices() -> None:
    assert parse_devices("cpu") == ("cpu",)
    assert parse_devices("cpu", 3) == ("cpu",) * 3
    for name in ("gpu", "cuda:x", "cuda:99", "", "meta"):
        with pytest.raises(InputError, match="there is no device"):
            parse_devices(name)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a machine without Apple's GPU")
def test_a_device_that_this_machine_lacks() -> None:
    with pytest.raises(InputError, match="there is no device 'mps': this PyTorch cannot use Apple"):
        parse_devices("mps")


def test_the_number_of_workers_is_limited() -> None:
    assert len(parse_devices("cpu", 256)) == 256
    for text, workers in (("cpu", 257), ("cpu,cpu", 129), (",".join(["cpu"] * 300), 1)):
        with pytest.raises(InputError, match="a run has at most 256 worker processes"):
            parse_devices(text, workers)


@pytest.mark.slow
def test_no_more_workers_than_units_are_started(tmp_path: Path) -> None:
    """Three photos in units of two are work for two processes, however many were asked for."""
    plan, started = make_plan(tmp_path, photos=3, methods=["random"]), set[int]()

    def look(_: Tally) -> None:
        started.update(child.pid or 0 for child in active_children())

    run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions(("cpu",) * 9, batch=2), look)
    assert 1 <= len(started) <= 2
    assert len(stored_rows(tmp_path / "s.sqlite")) == 3
