"""Runs tries in worker processes, because importing PyTorch takes seconds and a try may hang.

A try is determined by a seed and its index. A worker that gives no answer for `seconds`, or takes
too much memory, is killed and replaced.
"""

import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch

from tests.fuzz.arrays import make_array_case
from tests.fuzz.bench_files import make_dataset_case, make_plan_case, make_store_case
from tests.fuzz.case import Case, Stock, forget, make_stock, write_odd_files
from tests.fuzz.command_lines import make_option_case
from tests.fuzz.folders import make_folder_case
from tests.fuzz.judge import CRASH, HANG, MEMORY, MOST_MEMORY, Ended, Outcome, run_case
from tests.fuzz.models import make_model_case, make_weights_case
from tests.fuzz.photos import make_photo_case
from tests.fuzz.targets import make_target_case


class Maker(Protocol):
    """Writes the files of a try into a folder, and returns its command."""

    def __call__(self, rng: Random, folder: Path, stock: Stock) -> Case: ...


KINDS: Mapping[str, tuple[Maker, int]] = {
    "photos": (make_photo_case, 25),
    "model files": (make_model_case, 20),
    "weights": (make_weights_case, 10),
    "plans": (make_plan_case, 10),
    "datasets": (make_dataset_case, 8),
    "results files": (make_store_case, 12),
    "options": (make_option_case, 25),
    "arrays": (make_array_case, 20),
    "targets": (make_target_case, 20),
    "folders": (make_folder_case, 20),
}
"""What is tried: a function that makes a try, and how often it is drawn."""

SECONDS = 60.0
"""A command that takes longer than this has hung."""

TRIES_PER_WORKER = 250
"""A worker is replaced after so many tries, since PyTorch keeps some memory of every capture."""

TRIES_PER_COLLECTION = 20
"""Collecting garbage takes a quarter of a second, more than most tries."""

ADDRESS_SPACE = 24 * 2**30
"""The most memory that a worker may even reserve, so that no try takes the machine down."""


def draw_kind(seed: int, index: int) -> tuple[Random, str]:
    """Return the source of randomness of a try, and its kind."""
    rng = Random(f"{seed}/{index}")
    (kind,) = rng.choices(list(KINDS), [weight for _, weight in KINDS.values()])
    return rng, kind


def make_case(seed: int, index: int, folder: Path, stock: Stock) -> Case:
    """Write the files of a try into a folder, and return its command."""
    rng, kind = draw_kind(seed, index)
    write_odd_files(folder)
    return KINDS[kind][0](rng, folder, stock)


def run_try(seed: int, index: int, stock: Stock, scratch: Path) -> Outcome:
    """Make a try in a new folder, run it in this process, and remove the folder."""
    tree, output = scratch / "try", scratch / "output"
    folder = tree / "two" / "down"  # an option may lead to ../..
    for path in (tree, output):
        shutil.rmtree(path, ignore_errors=True)
    for path in (folder, output):
        path.mkdir(parents=True)
    outcome = Outcome(index, draw_kind(seed, index)[1])
    case = make_case(seed, index, folder, stock)
    outcome.arguments, outcome.note = case.arguments, case.note
    _reset_peak()
    run_case(outcome, case.arguments, folder, tree=tree, output=output)
    outcome.peak = _peak()
    os.chdir(scratch)
    forget(folder)
    if index % TRIES_PER_COLLECTION == 0:
        gc.collect()
    return outcome


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    return _memory(os.getpid(), "VmHWM")


def _memory(pid: int, entry: str = "VmRSS") -> int:
    """Return an entry of a process's status in bytes, 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(entry)), 0)


def serve(pipe: Any, seed: int, stock: Stock, scratch: Path) -> None:
    """Entry point of a worker: run the tries whose indices arrive until the pipe is closed."""
    os.setsid()  # so that it can be killed with the processes that a try starts
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    torch.set_num_threads(1)
    scratch.mkdir(parents=True)
    while True:
        try:
            index = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(run_try(seed, index, stock, scratch))
        except Exception:  # a mistake of the fuzzer itself, which ends the run
            pipe.send(traceback.format_exc())


@dataclass
class _Worker:
    """A process, and the try that it is busy with since a moment."""

    process: Any
    pipe: Any
    scratch: Path
    index: int | None = None
    since: float = 0.0
    peak: int = 0
    tries: int = 0

    def kill(self) -> None:
        """Kill the process and all that it has started, and remove its files."""
        for kill in (lambda: os.killpg(self.process.pid, signal.SIGKILL), self.process.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill()
        self.process.join()
        self.pipe.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def measure(self) -> int:
        """Return the memory of the process and of those that it has started, now."""
        waiting, total = [self.process.pid], 0
        while waiting:
            pid = waiting.pop()
            total += _memory(pid)
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                continue
            waiting += [int(child) for child in children]
        self.peak = max(self.peak, total)
        return total


class Fuzzer:
    """Runs the tries of a seed, `workers` at a time; `seconds` is the limit of a try.

    with Fuzzer(seed=1, workers=2) as fuzzer:
        for outcome in fuzzer.outcomes(range(5000)):
            ...
    """

    def __init__(self, seed: int, *, workers: int = 1, seconds: float = SECONDS) -> None:
        self.seed, self.seconds = seed, seconds
        self._count = workers
        self._started = 0

    def __enter__(self) -> "Fuzzer":
        self._folder = Path(tempfile.mkdtemp(prefix="dmbp-fuzz-"))
        self.stock = make_stock(self._folder / "stock")
        self._workers: list[_Worker] = []
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def outcomes(self, indices: Sequence[int]) -> Iterator[Outcome]:
        """Yield the outcome of each try as it ends."""
        waiting = list(reversed(indices))
        while waiting or any(worker.index is not None for worker in self._workers):
            while waiting and len(self._workers) < min(self._count, len(indices)):
                self._workers.append(self._start())
            for worker in self._workers:
                if waiting and worker.index is None:
                    worker.index, worker.since, worker.peak = waiting.pop(), time.monotonic(), 0
                    worker.pipe.send(worker.index)
            yield from self._collect()

    def _start(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        scratch = self._folder / f"worker-{self._started}"
        self._started += 1
        arguments = (theirs, self.seed, self.stock, scratch)
        process = context.Process(target=serve, args=arguments)
        process.start()
        theirs.close()
        return _Worker(process, ours, scratch)

    def _collect(self) -> Iterator[Outcome]:
        """Wait a moment for answers; kill workers that take too long or too much memory."""
        busy = [worker for worker in self._workers if worker.index is not None]
        ready = connection.wait([worker.pipe for worker in busy], timeout=0.05)
        for worker in busy:
            if worker.pipe in ready:
                yield self._received(worker)
            elif worker.measure() > MOST_MEMORY + 2**30:
                yield self._killed(worker, MEMORY)
            elif time.monotonic() - worker.since > self.seconds:
                yield self._killed(worker, HANG)

    def _received(self, worker: _Worker) -> Outcome:
        try:
            outcome = worker.pipe.recv()
        except (EOFError, OSError):
            return self._killed(worker, CRASH)
        if isinstance(outcome, str):
            sys.exit(f"the fuzzer failed at try {worker.index} of seed {self.seed}: {outcome}")
        outcome.peak = max(outcome.peak, worker.peak)
        if outcome.peak > MOST_MEMORY:
            outcome.problems.append((MEMORY, f"{outcome.peak / 2**30:.1f} GB"))
        worker.index, worker.since, worker.tries = None, time.monotonic(), worker.tries + 1
        if worker.tries >= TRIES_PER_WORKER:
            self._remove(worker)
        return outcome

    def _killed(self, worker: _Worker, problem: str) -> Outcome:
        index = worker.index
        assert index is not None
        outcome = Outcome(index, draw_kind(self.seed, index)[1], peak=worker.peak)
        outcome.seconds = time.monotonic() - worker.since
        output = worker.scratch / "output"
        texts = [
            (output / name).read_text(errors="replace") if (output / name).exists() else ""
            for name in ("out", "err")
        ]
        outcome.ended = Ended(None, *texts)
        outcome.problems = [(problem, f"after {outcome.seconds:.0f} s")]
        self._remove(worker)
        folder = self._folder / "described"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        case = make_case(self.seed, index, folder, self.stock)
        outcome.arguments, outcome.note = case.arguments, case.note
        return outcome

    def _remove(self, worker: _Worker) -> None:
        worker.kill()
        self._workers.remove(worker)
