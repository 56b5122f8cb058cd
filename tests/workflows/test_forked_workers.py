"""Worker processes: the order of answers, tasks without one, and how the processes end."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch

from dmbp.workflows.forked_workers import ForkedWorkers, can_fork, usable_cores

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux only")


def answer(task: int) -> tuple[int, int, int]:
    """Answer slowly if the number is even, fail at 5, and die at 6."""
    if task % 2 == 0:
        time.sleep(0.02)
    if task == 5:
        raise ValueError("five")
    if task == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task, os.getpid(), torch.get_num_threads()


def test_answers_come_in_order_and_some_tasks_have_none() -> None:
    with ForkedWorkers(answer, 2) as workers:
        found = list(workers.map(range(10)))
    assert [task for task, _ in found] == list(range(10))
    assert [task for task, own in found if own is None] == [5, 6]
    answers = [own for _, own in found if own is not None]
    assert [own[0] for own in answers] == [k * k for k in range(10) if k not in (5, 6)]
    assert {own[2] for own in answers} == {1}
    processes = {own[1] for own in answers}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_tasks_remain_if_all_workers_have_died() -> None:
    with ForkedWorkers(answer, 1) as workers:
        found = list(workers.map([1, 6, 3, 4]))
    assert [(task, own is None) for task, own in found] == [
        (1, False),
        (6, True),
        (3, True),
        (4, True),
    ]


def test_tasks_are_read_only_so_far_ahead() -> None:
    read: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(100, 140):
            read.append(task)
            yield task

    def slow_at_first(task: int) -> int:
        time.sleep(0.3 if task == 100 else 0)
        return task

    with ForkedWorkers(slow_at_first, 2) as workers:
        for number, _ in enumerate(workers.map(tasks()), 1):
            assert len(read) <= number + 4


def is_running(process: int) -> bool:
    """Return whether there is such a process that is not only waiting to be read."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(processes: list[int]) -> None:
    until = time.monotonic() + 10
    while any(map(is_running, processes)):
        assert time.monotonic() < until, "a worker is left"
        time.sleep(0.01)


def test_workers_ignore_interrupts_and_end_with_the_block() -> None:
    with ForkedWorkers(answer, 2) as workers:
        processes = [worker.process.pid or 0 for worker in workers._workers]
        for process in processes:
            os.kill(process, signal.SIGINT)
        assert [own is not None for _, own in workers.map([1, 2, 3])] == [True] * 3
    wait_until_gone(processes)


def test_workers_end_if_their_parent_is_killed() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        workers = ForkedWorkers(answer, 2)
        os.write(write, " ".join(str(k.process.pid) for k in workers._workers).encode())
        signal.pause()
    processes = [int(text) for text in os.read(read, 100).split()]
    assert all(map(is_running, processes))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until_gone(processes)
    os.close(read)
    os.close(write)


def test_no_more_cores_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert usable_cores() == 1
