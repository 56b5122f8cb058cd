"""Peak memory: the most that a piece of work takes beyond what was in use before it.

    peak = measure_peak(lambda: torch.ones(2**22), torch.device("cpu"))
    peak.bytes, peak.what                # (16 MiB or a little more, 'resident growth of …')

On a GPU, PyTorch counts what it allocates. On a CPU nothing does, but Linux keeps the high-water
mark of a process's resident memory. It includes the workspaces of libraries, and excludes memory
that was already free inside the process.
"""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

CUDA_ALLOCATED = "allocated by torch.cuda"
RESIDENT_GROWTH = "resident growth of the process"

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = "5"
"""What to write to `clear_refs` to set the high-water mark to the present value (proc(5))."""


@dataclass(frozen=True)
class Peak:
    """A number of bytes, and what it counts."""

    bytes: int
    what: str


def measure_peak(work: Callable[[], object], device: torch.device) -> Peak | None:
    """Run some work and return its peak on a device; None if the system does not tell."""
    gc.collect()
    return _cuda_peak(work, device) if device.type == "cuda" else _resident_peak(work)


def _cuda_peak(work: Callable[[], object], device: torch.device) -> Peak:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return Peak(torch.cuda.max_memory_allocated(device) - before, CUDA_ALLOCATED)


def _resident_peak(work: Callable[[], object]) -> Peak | None:
    _return_free_memory()
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK)
        before = _kibibytes("VmRSS")
    except OSError:  # not Linux, or a process may not look at itself
        work()
        return None
    work()
    return Peak(1024 * max(0, _kibibytes("VmHWM") - before), RESIDENT_GROWTH)


def _return_free_memory() -> None:
    """Return free memory to the system: using it again would not raise the high-water mark."""
    with suppress(OSError, AttributeError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)


def _kibibytes(field: str) -> int:
    """Return a field of `/proc/self/status`."""
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(fields[field].split()[0])
