"""The most memory that a piece of work takes beyond what was in use before it.

    peak = measured(lambda: torch.ones(2**22), torch.device("cpu"))
    peak.bytes, peak.what                # (16 MiB or a little more, 'resident growth of …')

On a GPU torch counts what it allocates. On a CPU nobody does; Linux keeps the high-water mark of a
process's resident memory, which counts libraries' workspaces too, and not what was lying free
inside the process before.
"""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

ALLOCATED = "allocated by torch.cuda"
RESIDENT = "resident growth of the process"

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_HIGHEST = "5"
"""What sets the high-water mark to the present (proc(5))."""


@dataclass(frozen=True)
class Peak:
    """A number of bytes, and what it counts."""

    bytes: int
    what: str


def measured(work: Callable[[], object], device: torch.device) -> Peak | None:
    """The peak of some work on a device; None where the system does not tell."""
    gc.collect()
    return _on_cuda(work, device) if device.type == "cuda" else _resident(work)


def _on_cuda(work: Callable[[], object], device: torch.device) -> Peak:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return Peak(torch.cuda.max_memory_allocated(device) - before, ALLOCATED)


def _resident(work: Callable[[], object]) -> Peak | None:
    _give_back()
    try:
        _CLEAR.write_text(_RESET_HIGHEST)
        before = _kibibytes("VmRSS")
    except OSError:  # no Linux, or none that lets a process look at itself
        work()
        return None
    work()
    return Peak(1024 * max(0, _kibibytes("VmHWM") - before), RESIDENT)


def _give_back() -> None:
    """Return what is free inside the process to the system: taken anew it would not count."""
    with suppress(OSError, AttributeError):  # the GNU C library has it, others need it less
        ctypes.CDLL(None).malloc_trim(0)


def _kibibytes(name: str) -> int:
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[name].split()[0])
