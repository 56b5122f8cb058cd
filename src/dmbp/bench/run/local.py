"""Computing on this machine: in this process, or in several, some for each device.

>>> parse_devices("cpu", workers=3)
('cpu', 'cpu', 'cpu')
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

from dmbp.bench.identity import load_task_model
from dmbp.bench.run.pool import Assignment, ResultStream, WorkerHandle, WorkerPool
from dmbp.bench.run.unit_runner import (
    MOST_DECODERS,
    UNITS_AHEAD,
    DecodedPhotos,
    LoadModel,
    UnitRunner,
)
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit
from dmbp.data.photo import without_size_warnings
from dmbp.errors import InputError, WorkerError

DEVICE_TYPES = ("cpu", "cuda", "mps")


def parse_devices(text: str, workers: int = 1) -> tuple[str, ...]:
    """Return a device's name for every worker.

    Args:
        text: Devices separated by commas, such as "cpu" or "cuda:0,cuda:1".
        workers: Workers for each device.

    Raises:
        InputError: A device does not exist.
    """
    names = [_check_device(name.strip()) for name in text.split(",")]
    return tuple(name for name in names for _ in range(workers))


def _check_device(name: str) -> str:
    """Return a device's name if it exists; nothing is put on it, which would cost memory."""
    kind, _, index = name.partition(":")
    if kind not in DEVICE_TYPES or not (index.isdecimal() or name == kind):
        raise InputError(f"there is no device {name!r}; devices are cpu, cuda, cuda:1 or mps")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"there is no device {name!r}: PyTorch finds {torch.cuda.device_count()} GPUs"
        )
    return name


@contextmanager
def on_device(device: str) -> Generator[None]:
    """Make a GPU the current one, on which kernels are launched wherever their tensors lie.

    Beside a GPU, torch is given one thread: eight decoding threads that each use all cores would
    slow each other down.
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


def run_in_process(units: Iterator[Unit], *, load: LoadModel, device: str = "cpu") -> ResultStream:
    """Compute units in this process while the photos of the next are decoded."""
    runner = UnitRunner(load)
    waiting: deque[tuple[Unit, DecodedPhotos]] = deque()
    try:
        with without_size_warnings(), on_device(device):
            for unit in units:
                waiting.append((unit, runner.decode(unit)))
                if len(waiting) > UNITS_AHEAD:
                    yield from runner.rows(*waiting.popleft())
            while waiting:
                yield from runner.rows(*waiting.popleft())
    finally:
        runner.close()


def run_in_processes(units: Iterator[Unit], *, devices: Sequence[str]) -> ResultStream:
    """Compute units in a process for each device; a device named twice has two."""
    return ProcessPool(units, devices).rows()


READY = "ready"

SECONDS_TO_END = 10.0
"""Seconds that a process has to end by itself; it needs a few milliseconds."""


class ProcessWorker(WorkerHandle):
    """A process that computes units; it reads them from a pipe and sends rows back."""

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device)
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, device, threads))
        with _interrupts_blocked():
            self.process.start()
        theirs.close()

    def send(self, assignment: Assignment) -> None:
        """Send a unit; a process that is gone already is noticed when the pipe is read."""
        try:
            self.pipe.send(assignment.unit)
        except OSError:
            return

    def end(self) -> None:
        """Close the pipe, on which the process exits; kill it if a driver or library holds it."""
        self.pipe.close()
        self.process.join(SECONDS_TO_END)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    @property
    def exit_reason(self) -> str:
        """How the process ended."""
        code = self.process.exitcode or 0
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


class ProcessPool(WorkerPool[ProcessWorker]):
    """Workers that are processes on this machine."""

    def start(self, device: str) -> ProcessWorker:
        """Start a process."""
        return ProcessWorker(device, threads_each(len(self._devices)))

    def collect(self) -> Iterator[list[ResultRow]]:
        """Wait until a process says that it is ready, sends rows, or ends."""
        by_pipe = {worker.pipe: worker for worker in self.workers}
        for pipe in connection.wait(list(by_pipe)):
            worker = by_pipe[pipe]  # pyright: ignore[reportArgumentType]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):  # also in the middle of a message
                worker.end()
                yield self.replace(worker, worker.exit_reason)
                continue
            if message == READY:
                self.mark_ready(worker)
            else:
                yield message
                self.finish_part(worker, worker.assignments[0])

    def stop(self) -> None:
        """Close all pipes before waiting for any process, so that they end at the same time."""
        for worker in self.workers:
            worker.pipe.close()
        super().stop()


@contextmanager
def _interrupts_blocked() -> Generator[None]:
    """Block interrupts; a process that is started inside never gets them.

    The driver deals with them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which unblocks interrupts when it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def threads_each(processes: int) -> int:
    """Return the threads for each process, so that together they use the machine's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(torch.get_num_threads(), (cores or 1) // processes))


def serve(pipe: Any, device: str, threads: int) -> None:
    """Compute the units that come through a pipe, in a process of its own, until it is closed."""
    torch.set_num_threads(threads)
    decoders = min(MOST_DECODERS, 2 * threads)
    runner = UnitRunner(partial(load_task_model, device=device), decoders=decoders)
    waiting: SimpleQueue[tuple[Unit, DecodedPhotos]] = SimpleQueue()
    Thread(target=_receive, args=(pipe, runner, waiting), daemon=True).start()
    with without_size_warnings(), on_device(device):
        _send(pipe, READY)
        try:
            while True:
                for rows in runner.rows(*waiting.get()):
                    _send(pipe, rows)
        except WorkerError as error:  # another process may do better
            sys.exit(f"dmbp: {error}")


def _send(pipe: Any, message: Any) -> None:
    """Send a message to the driver; exit at once if there is none."""
    try:
        pipe.send(message)
    except OSError:
        os._exit(0)


def _receive(
    pipe: Any, runner: UnitRunner, waiting: "SimpleQueue[tuple[Unit, DecodedPhotos]]"
) -> None:
    """Receive units and begin to decode them; exit at once if the driver is gone."""
    try:
        while True:
            unit = pipe.recv()
            waiting.put((unit, runner.decode(unit)))
    except (EOFError, OSError):
        os._exit(0)
