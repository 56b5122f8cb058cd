"""Many processes on one machine: some for the CPU, or some for each GPU.

Every process has a unit to compute and one to decode; it says when a part is done. One that is
killed is replaced, and what it had in hand is tried again.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection, get_context, resource_tracker
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from dmbp.bench.devices import on_device
from dmbp.bench.executor import Rows
from dmbp.bench.photos import Photos
from dmbp.bench.station import DECODERS, Station
from dmbp.bench.store import Row
from dmbp.bench.subject import task_classifier
from dmbp.bench.trial import IN_HAND, MOST_TRIES, Trial
from dmbp.bench.unit import Unit
from dmbp.data.photo import size_unremarked
from dmbp.errors import WorkerError

READY = "ready"

PATIENCE = 10.0
"""Seconds that a process has to end by itself; it needs a few milliseconds."""


def processes(units: Iterator[Unit], *, devices: Sequence[str]) -> Rows:
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
        self.trials: deque[Trial] = deque()
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, device, threads))
        with _interrupts_held():
            self.process.start()
        theirs.close()

    def give(self, trial: Trial) -> None:
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
        self._again: deque[Trial] = deque()
        self._new = (Trial(unit) for unit in units)
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

    def take_in(self) -> Iterator[list[Row]]:
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

    def _next(self) -> Trial | None:
        return self._again.popleft() if self._again else next(self._new, None)

    def _reported(self, member: Member) -> None:
        member.trials[0].report()
        if member.trials[0].finished:
            member.trials.popleft()

    def _replace(self, member: Member) -> list[Row]:
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
    station = Station(partial(task_classifier, device=device), decoders=min(DECODERS, 2 * threads))
    waiting: SimpleQueue[tuple[Unit, Photos]] = SimpleQueue()
    Thread(target=_listen, args=(line, station, waiting), daemon=True).start()
    with size_unremarked(), on_device(device):
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


def _listen(line: Any, station: Station, waiting: "SimpleQueue[tuple[Unit, Photos]]") -> None:
    """Take units in as they come, and begin to decode them; without a driver, end at once."""
    try:
        while True:
            unit = line.recv()
            waiting.put((unit, station.photos(unit)))
    except (EOFError, OSError):
        os._exit(0)
