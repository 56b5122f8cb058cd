"""Changes process-wide state, in one thread at a time, and restores it; measures peak memory.

PyTorch's switches (TF32, deterministic kernels), Python's warnings and logs belong to the whole
process, a model's mode belongs to every thread that uses the model, and `torch.export` briefly
replaces a model's parameters with tensors that have no data. Code that changes any of these holds
`PROCESS_LOCK` until everything is restored, so explanations in several threads run one after
another, each as if it were alone.

The output of other libraries is silenced in the same way, because an error should reach the user as
one sentence: if `torch.export` fails, it logs a warning and prints the whole graph to standard
error.

`measure_peak` returns the most memory that a function needs beyond what was in use before it. On a
GPU, PyTorch counts what it allocates. On a CPU it does not, but Linux keeps the high-water mark of
a process's resident memory. This includes the workspaces of libraries, and excludes memory that was
already free inside the process.
"""

from __future__ import annotations

import ctypes
import gc
import io
import logging
import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process that decodes photos of strangers does without PyTorch
    import torch

PROCESS_LOCK = RLock()

TASKS = Path("/proc/self/task")


class Fork:
    """Makes a forked process usable: it has the memory of its parent, but only one of its threads.

    A fork waits until no other thread explains, because the child would inherit switches that
    nobody restores. Threads of PyTorch's that the parent had are missing in the child, where
    parallel operations would wait for them forever; `use_own_threads` lets it do without.
    """

    has_lost_threads = False
    has_native_threads = True

    @classmethod
    def before(cls) -> None:
        """Wait for other threads, and see whether there are any that Python does not know."""
        PROCESS_LOCK.acquire()
        with suppress(OSError):
            cls.has_native_threads = len(list(TASKS.iterdir())) > threading.active_count()

    @classmethod
    def in_parent(cls) -> None:
        """Let other threads continue."""
        PROCESS_LOCK.release()

    @classmethod
    def in_child(cls) -> None:
        """Remember that the parent's threads are missing."""
        cls.has_lost_threads = cls.has_native_threads
        PROCESS_LOCK.release()

    @classmethod
    def use_own_threads(cls) -> None:
        """In a forked process, compute in one thread, as PyTorch's `DataLoader` has it."""
        if not cls.has_lost_threads:
            return
        cls.has_lost_threads = False
        import torch

        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)
            warnings.warn(
                "this process was forked, and PyTorch's threads do not survive that: it explains "
                "in one thread; start processes with the method 'spawn' to have several",
                stacklevel=2,
            )


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(
        before=Fork.before,
        after_in_parent=Fork.in_parent,
        after_in_child=Fork.in_child,
    )


@contextmanager
def temporarily_set(*switches: tuple[Any, str, Any]) -> Generator[None]:
    """Set attributes, each given as (owner, name, value), and restore them on exit."""
    with PROCESS_LOCK:
        before = [_current_value(owner, name) for owner, name, _ in switches]
        try:
            for owner, name, value in switches:
                setattr(owner, name, value)
            yield
        finally:
            for (owner, name, _), value in zip(switches, before, strict=True):
                setattr(owner, name, value)


def _current_value(owner: Any, name: str) -> Any:
    """Return a switch's value; PyTorch's half-precision reductions are set as a pair."""
    value, split = getattr(owner, name), getattr(owner, f"{name}_split_k", None)
    return value if split is None else (value, split)


@contextmanager
def silence_logging(level: int = logging.WARNING) -> Generator[None]:
    """Suppress log messages up to a level inside, by default those below errors."""
    with PROCESS_LOCK:
        before = logging.root.manager.disable
        logging.disable(max(before, level))
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def silence_output() -> Generator[None]:
    """Suppress logs, warnings and everything printed to standard error inside."""
    with (
        silence_logging(logging.ERROR),
        warnings.catch_warnings(),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def defer_interrupts() -> Generator[None]:
    """Let an interrupt (Ctrl-C) wait until the code inside has finished.

    An import that is interrupted leaves modules behind that no later import repairs. Interrupts
    reach the main thread only, so in other threads there is nothing to defer.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


CUDA_ALLOCATED = "allocated by torch.cuda"
RESIDENT_GROWTH = "resident growth of the process"

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = "5"
"""What to write to `clear_refs` to set the high-water mark to the present value (proc(5))."""


CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The most bytes that a container on Linux may take, or `max`."""


def machine_memory() -> float:
    """Return how many bytes of memory this machine, or the container, has; infinity if unknown."""
    found = math.inf
    with suppress(OSError, ValueError, AttributeError):  # not on Windows
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        found = min(found, int(CONTAINER_LIMIT.read_text()))
    return found


@dataclass(frozen=True)
class Peak:
    """A peak in bytes, and what it measures."""

    bytes: int
    what: str


def measure_peak(work: Callable[[], object], device: torch.device) -> Peak | None:
    """Run a function and return its peak on a device, or None if it cannot be measured."""
    gc.collect()
    return _cuda_peak(work, device) if device.type == "cuda" else _resident_peak(work)


def _cuda_peak(work: Callable[[], object], device: torch.device) -> Peak:
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return Peak(torch.cuda.max_memory_allocated(device) - before, CUDA_ALLOCATED)


def _resident_peak(work: Callable[[], object]) -> Peak | None:
    return_free_memory()
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK)
        before = _kibibytes("VmRSS")
    except OSError:  # not Linux, or the process may not read its own status
        work()
        return None
    work()
    return Peak(1024 * max(0, _kibibytes("VmHWM") - before), RESIDENT_GROWTH)


def return_free_memory() -> None:
    """Return free memory to the system.

    Tensors of many sizes leave gaps on the heap that the C library keeps: the resident memory
    grows although no more of it is used.
    """
    with suppress(OSError, AttributeError):  # only the GNU C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _kibibytes(field: str) -> int:
    """Return a field of `/proc/self/status`, in KiB."""
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(fields[field].split()[0])
