"""Worker processes that are forks of this one.

    with ForkedWorkers(explain_group, count=2) as workers:
        for group, answer in workers.map(groups):
            ...

A fork has everything that its parent has, such as a model that was captured, without loading or
copying it. Each worker computes in one thread: two processes with one thread each explain more
photos than one process with two, whose threads wait for each other at the end of every operation.

Answers come in the order of the tasks. A task has none if an exception was raised or the system has
killed the worker: the caller then does the task itself, and meets the exception where it belongs.
Workers ignore interrupts, and end when their parent does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any, Generic, Self, TypeVar

import torch

from dmbp.process import end_with_parent

Task = TypeVar("Task")
Answer = TypeVar("Answer")

TASKS_AHEAD = 2
"""How many tasks for each worker may be answered before their turn, which bounds memory."""

EXIT_TIMEOUT = 10.0
"""Seconds after which a worker that has not exited is killed; exiting takes milliseconds."""


def can_fork() -> bool:
    """Return whether worker processes can be made here.

    Forks are for Linux (libraries of macOS fail in them) and for the main thread of a process that
    may have children.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and is_main and not multiprocessing.current_process().daemon


def usable_cores() -> int:
    """Return how many cores this process may use, or PyTorch's threads if these are fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, torch.get_num_threads())


class ForkedWorkers(Generic[Task, Answer]):
    """Answers tasks in worker processes.

    Args:
        answer: Answers a task; both are pickled on their way. It may be any function, because forks
            have it already.
        count: How many workers there are.
    """

    def __init__(self, answer: Callable[[Task], Answer], count: int) -> None:
        self._workers: list[_ForkedProcess] = []
        for _ in range(count):
            self._workers.append(_ForkedProcess(answer, [worker.pipe for worker in self._workers]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.end()

    def map(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Answer | None]]:
        """Yield each task with its answer, or with None if there is none, in order."""
        remaining = iter(tasks)
        waiting: deque[_Job[Task]] = deque()
        running: dict[Any, tuple[_ForkedProcess, _Job[Task]]] = {}  # by pipe
        idle = list(self._workers)
        is_over = False
        while True:
            while idle and not is_over and len(waiting) < TASKS_AHEAD * len(self._workers):
                task = next(remaining, _NOTHING)
                is_over = task is _NOTHING
                if isinstance(task, _Nothing):
                    break
                worker, job = idle.pop(), _Job(task)
                waiting.append(job)
                worker.send(task)
                running[worker.pipe] = worker, job
            if waiting and waiting[0].is_done:
                job = waiting.popleft()
                yield job.task, job.answer
                continue
            if not running:
                break
            for pipe in connection.wait(list(running)):
                worker, job = running.pop(pipe)
                job.is_done = True
                if worker.receive(job):
                    idle.append(worker)
        for task in remaining:  # nothing remains, unless all workers have died
            yield task, None


class _Nothing:
    """There are no more tasks."""


_NOTHING = _Nothing()


class _Job(Generic[Task]):
    """A task that a worker has or had, and its answer, if it has one."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_done = False
        self.answer: Any = None


class _ForkedProcess:
    """A process, and the pipe to it."""

    def __init__(self, answer: Callable[[Any], Any], others: list[Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, child = context.Pipe()
        # Only if every copy of the parent's end is closed does a worker notice that it has ended.
        arguments = (child, [*others, self.pipe], answer)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        with _interrupts_blocked(), warnings.catch_warnings():
            # Python warns of forks if there are threads; `Fork` has made this one safe.
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
            self.process.start()
        child.close()

    def send(self, task: Any) -> None:
        """Send a task; that the process has ended is noticed when its answer is read."""
        with suppress(OSError):
            self.pipe.send(task)

    def receive(self, job: _Job[Any]) -> bool:
        """Read the answer to a job, and return whether the process still runs."""
        try:
            job.answer = self.pipe.recv()
        except (EOFError, OSError):
            return False
        return True

    def end(self) -> None:
        """End the process, even if it is computing."""
        self.process.terminate()
        self.process.join(EXIT_TIMEOUT)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Any, parents: list[Any], answer: Callable[[Any], Any]) -> None:
    """Answer tasks until the parent closes its end of the pipe, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for end in parents:
        end.close()
    end_with_parent()
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                found = answer(task)
            except Exception:  # the parent will meet it, too
                found = None
            pipe.send(found)


@contextmanager
def _interrupts_blocked() -> Generator[None]:
    """Block SIGINT until a process that is started inside ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
