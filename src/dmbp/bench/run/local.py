"""Which devices a run uses: `cpu`, `cuda`, `cuda:0,cuda:1`, each with some processes.

>>> devices("cpu", workers=3)
('cpu', 'cpu', 'cpu')

Who computes units: an executor takes them as it can, and gives back rows as they come.

Many processes on one machine: some for the CPU, or some for each GPU.

Every process has a unit to compute and one to decode; it says when a part is done. One that is
killed is replaced, and what it had in hand is tried again.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context, resource_tracker
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from dmbp.bench.identity import task_classifier
from dmbp.bench.plan import Task
from dmbp.bench.run.pool import IN_HAND, MOST_TRIES, Assignment
from dmbp.bench.run.unit_runner import AHEAD, DECODERS, Photos, UnitRunner
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit
from dmbp.data.photo import without_size_warnings
from dmbp.errors import InputError, WorkerError
from dmbp.models import Classifier

KINDS = ("cpu", "cuda", "mps")


def devices(given: str, workers: int = 1) -> tuple[str, ...]:
    """A device's name for every process: `workers` for each device given."""
    names = [_there(name.strip()) for name in given.split(",")]
    return tuple(name for name in names for _ in range(workers))


@contextmanager
def on_device(device: str) -> Generator[None]:
    """Make a GPU the one that kernels are launched on, whichever a tensor lies on.

    Beside a GPU each thread that decodes computes alone: eight with a pool of all cores each would
    be in one another's way.
    """
    if not device.startswith("cuda"):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.set_num_threads(threads)


def _there(name: str) -> str:
    """A device's name, of one that is there; nothing is put on it, which would cost memory."""
    kind, _, index = name.partition(":")
    if kind not in KINDS or not (index.isdecimal() or name == kind):
        raise InputError(f"there is no device {name!r}; devices are cpu, cuda, cuda:1 or mps")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"there is no device {name!r}: PyTorch finds {torch.cuda.device_count()} GPUs"
        )
    return name


ResultStream = Generator[list[ResultRow]]
Executor = Callable[[Iterator[Unit]], ResultStream]


def run_in_process(
    units: Iterator[Unit], *, load: Callable[[Task], Classifier], device: str = "cpu"
) -> ResultStream:
    """Compute in this process, the photos of the next unit being decoded meanwhile."""
    station = UnitRunner(load)
    waiting: deque[tuple[Unit, Photos]] = deque()
    try:
        with without_size_warnings(), on_device(device):
            for unit in units:
                waiting.append((unit, station.photos(unit)))
                if len(waiting) > AHEAD:
                    yield from station.rows(*waiting.popleft())
            while waiting:
                yield from station.rows(*waiting.popleft())
    finally:
        station.close()


READY = "ready"

PATIENCE = 10.0
"""Seconds that a process has to end by itself; it needs a few milliseconds."""


def processes(units: Iterator[Unit], *, devices: Sequence[str]) -> ResultStream:
    """Compute in a process for each of `devices`; one named twice has two."""
    crew = Crew(devices, units)
    try:
        while crew.hand_out():
            yield from crew.take_in()
    finally:
        crew.stop()


class Member:
    """A process, and the units in its hands, the one it computes first."""

    def __init__(self, device: str, threads: int) -> None:
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.device, self.ready = device, False
        self.trials: deque[Assignment] = deque()
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, device, threads))
        with _interrupts_held():
            self.process.start()
        theirs.close()

    def give(self, trial: Assignment) -> None:
        """Hand it a unit; one that is gone already is noticed when it is listened to."""
        self.trials.append(trial)
        try:
            self.line.send(trial.unit)
        except OSError:
            return

    def end(self) -> str:
        """Close its line, on which it ends, if it has not; how it ended.

        One that does not, because a driver or a library holds it, is killed.
        """
        self.line.close()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code = self.process.exitcode or 0
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


class Crew:
    """The processes of a run."""

    def __init__(self, devices: Sequence[str], units: Iterator[Unit]) -> None:
        self._threads = threads_each(len(devices))
        self._again: deque[Assignment] = deque()
        self._new = (Assignment(unit) for unit in units)
        self._stillborn = 0
        self._members: list[Member] = []
        for device in devices:
            self._members.append(Member(device, self._threads))

    def hand_out(self) -> bool:
        """Fill every hand, first those with least in them; whether anything is in one."""
        for held in range(IN_HAND):
            for member in self._members:
                if len(member.trials) <= held and (trial := self._next()) is not None:
                    member.give(trial)
        return any(member.trials for member in self._members)

    def take_in(self) -> Iterator[list[ResultRow]]:
        """Wait until somebody has something to say; the rows that come of it."""
        lines = {member.line: member for member in self._members}
        for line in connection.wait(list(lines)):
            member = lines[line]  # pyright: ignore[reportArgumentType]
            try:
                said = member.line.recv()
            except (EOFError, OSError):  # also in the middle of a message
                yield self._replace(member)
                continue
            if said == READY:
                member.ready, self._stillborn = True, 0
            else:
                yield said
                self._reported(member)

    def stop(self) -> None:
        """End all processes, whatever they are at."""
        for member in self._members:
            member.line.close()
        for member in self._members:
            member.end()

    def _next(self) -> Assignment | None:
        return self._again.popleft() if self._again else next(self._new, None)

    def _reported(self, member: Member) -> None:
        member.trials[0].report()
        if member.trials[0].finished:
            member.trials.popleft()

    def _replace(self, member: Member) -> list[ResultRow]:
        """Another in its place; what it had in hand is tried again, or given up."""
        why = member.end()
        self._members.remove(member)
        if not member.ready:
            self._stillborn += 1
            if self._stillborn >= MOST_TRIES:
                raise WorkerError(f"processes for {member.device} do not start: the last {why}")
        rows = member.trials[0].lose(why) if member.ready and member.trials else []
        self._again.extend(trial for trial in member.trials if not trial.finished)
        self._members.append(Member(member.device, self._threads))
        return rows


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Hold interrupts back until the end; a process that is started inside never gets them.

    They are the driver's to deal with.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which lets interrupts through when it is started
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def threads_each(processes: int) -> int:
    """Threads for each process, so that together they have the machine's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(torch.get_num_threads(), (cores or 1) // processes))


def work(line: Any, device: str, threads: int) -> None:
    """What a process does: compute the units that come over the line until it is closed."""
    torch.set_num_threads(threads)
    station = UnitRunner(
        partial(task_classifier, device=device), decoders=min(DECODERS, 2 * threads)
    )
    waiting: SimpleQueue[tuple[Unit, Photos]] = SimpleQueue()
    Thread(target=_listen, args=(line, station, waiting), daemon=True).start()
    with without_size_warnings(), on_device(device):
        _say(line, READY)
        try:
            while True:
                for rows in station.rows(*waiting.get()):
                    _say(line, rows)
        except WorkerError as error:  # another process may do better
            sys.exit(f"dmbp: {error}")


def _say(line: Any, what: Any) -> None:
    """Tell the driver; without one, end at once."""
    try:
        line.send(what)
    except OSError:
        os._exit(0)


def _listen(line: Any, station: UnitRunner, waiting: "SimpleQueue[tuple[Unit, Photos]]") -> None:
    """Take units in as they come, and begin to decode them; without a driver, end at once."""
    try:
        while True:
            unit = line.recv()
            waiting.put((unit, station.photos(unit)))
    except (EOFError, OSError):
        os._exit(0)
