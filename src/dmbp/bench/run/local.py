"""Workers on this machine: this process, or one or more processes for each device.

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
from dmbp.bench.run import worker_process
from dmbp.bench.run.pool import Assignment, ResultStream, WorkerHandle, WorkerPool
from dmbp.bench.run.unit_runner import (
    MAX_DECODERS,
    UNITS_AHEAD,
    DecodedPhotos,
    LoadModel,
    UnitRunner,
)
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit
from dmbp.data.photo import without_size_warnings
from dmbp.devices import AUTO, best_device
from dmbp.errors import InputError, WorkerError
from dmbp.files import shown

DEVICE_TYPES = ("cpu", "cuda", "mps")

MAX_WORKERS = 256
"""The most worker processes of a run; each takes a third of a gigabyte before it loads a model."""


def parse_devices(text: str, workers: int = 1) -> tuple[str, ...]:
    """Return the name of each worker's device.

    Args:
        text: Devices separated by commas, such as "cpu" or "cuda:0,cuda:1".
        workers: Workers for each device.

    Raises:
        InputError: If a device does not exist, or there are more than `MAX_WORKERS` workers.
    """
    names = [_check_device(name.strip()) for name in text.split(",")]
    if len(names) * workers > MAX_WORKERS:
        raise InputError(
            f"{len(names)} devices with {workers} workers each are too many: a run has at most "
            f"{MAX_WORKERS} worker processes"
        )
    return tuple(name for name in names for _ in range(workers))


def _check_device(name: str) -> str:
    """Return the name of a device that exists; nothing is allocated on it."""
    name = best_device() if name == AUTO else name
    kind, _, index = name.partition(":")
    is_number = index.isdecimal() and len(index) <= 3  # PyTorch numbers devices to 127
    if kind not in DEVICE_TYPES or not (is_number or name == kind):
        raise InputError(
            f"there is no device {shown(name)!r}; devices are auto, cpu, cuda, cuda:1 or mps"
        )
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"there is no device {name!r}: PyTorch finds {torch.cuda.device_count()} GPUs"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"there is no device {name!r}: this PyTorch cannot use Apple's GPUs")
    return name


@contextmanager
def on_device(device: str) -> Generator[None]:
    """Make a GPU the current device: Triton launches kernels there, wherever their tensors are.

    With a GPU, torch uses one CPU thread: eight decoding threads that each use all cores would slow
    each other down. Any other device changes nothing.
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
    """Compute units in this process; the photos of the next are decoded meanwhile."""
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
    """Compute units in one process for each entry of `devices`, which may repeat a device."""
    return ProcessPool(units, devices).rows()


READY = "ready"
"""The message that a worker process sends once it has started."""

EXIT_TIMEOUT = 10.0
"""Seconds after which a process that has not exited is killed; exiting takes milliseconds."""


class ProcessWorker(WorkerHandle):
    """A process that receives units through a pipe, computes them and sends rows back."""

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device)
        context = get_context("spawn")  # a forked process cannot use CUDA
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(
            target=worker_process.main, args=(child_pipe, device, threads)
        )
        with _interrupts_blocked():
            self.process.start()
        child_pipe.close()

    def send(self, assignment: Assignment) -> None:
        """Send a unit; that the process has died is noticed when the pipe is read."""
        try:
            self.pipe.send(assignment.unit)
        except OSError:
            return

    def end(self) -> None:
        """Close the pipe, upon which the process exits; kill it if that takes too long."""
        self.pipe.close()
        self.process.join(EXIT_TIMEOUT)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    @property
    def exit_reason(self) -> str:
        """The signal or exit code with which the process ended, as the end of a sentence."""
        code = self.process.exitcode or 0
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


class ProcessPool(WorkerPool[ProcessWorker]):
    """Workers that are processes on this machine."""

    def start(self, device: str) -> ProcessWorker:
        """Start a process."""
        return ProcessWorker(device, threads_per_process(len(self._devices)))

    def collect(self) -> Iterator[list[ResultRow]]:
        """Wait until a process is ready, sends rows, or ends."""
        by_pipe = {worker.pipe: worker for worker in self.workers}
        for pipe in connection.wait(list(by_pipe)):
            worker = by_pipe[pipe]  # pyright: ignore[reportArgumentType]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):  # possibly in the middle of a message
                worker.end()
                yield self.replace(worker, worker.exit_reason)
                continue
            if message == READY:
                self.mark_ready(worker)
            else:
                yield message
                self.finish_part(worker, worker.assignments[0])

    def stop(self) -> None:
        """End all workers; all pipes are closed first, so that the processes exit concurrently."""
        for worker in self.workers:
            worker.pipe.close()
        super().stop()


@contextmanager
def _interrupts_blocked() -> Generator[None]:
    """Block SIGINT; a process that is started inside inherits that, so only the driver gets it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def threads_per_process(processes: int) -> int:
    """Return the number of threads per process with which together they use all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(torch.get_num_threads(), (cores or 1) // processes))


def worker_main(pipe: Any, device: str, threads: int) -> None:
    """Compute units from a pipe until it is closed; `worker_process.main` calls this."""
    torch.set_num_threads(threads)
    decoders = min(MAX_DECODERS, 2 * threads)
    runner = UnitRunner(partial(load_task_model, device=device), decoders=decoders)
    waiting: SimpleQueue[tuple[Unit, DecodedPhotos]] = SimpleQueue()
    Thread(target=_receive, args=(pipe, runner, waiting), daemon=True).start()
    with without_size_warnings(), on_device(device):
        _send(pipe, READY)
        try:
            while True:
                for rows in runner.rows(*waiting.get()):
                    _send(pipe, rows)
        except WorkerError as error:  # the driver starts another process
            sys.exit(f"dmbp: {error}")


def _send(pipe: Any, message: Any) -> None:
    """Send a message to the driver; exit at once if the driver is gone."""
    try:
        pipe.send(message)
    except OSError:
        os._exit(0)


def _receive(
    pipe: Any, runner: UnitRunner, waiting: "SimpleQueue[tuple[Unit, DecodedPhotos]]"
) -> None:
    """Receive units and start to decode them; exit at once if the driver is gone."""
    try:
        while True:
            unit = pipe.recv()
            waiting.put((unit, runner.decode(unit)))
    except (EOFError, OSError):
        os._exit(0)
