"""What a device can do at most, measured beside what is compared with it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Ceilings:
    """Bytes read and written a second by a large copy; operations a second of a large product."""

    bytes: float
    flops: float


def wait(device: str) -> None:
    """Until everything asked of the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(action: Callable[[], Any], device: str) -> float:
    """What one call takes."""
    wait(device)
    started = time.perf_counter()
    action()
    wait(device)
    return time.perf_counter() - started


def ceilings(device: str) -> Ceilings:
    """Those of a device: in bfloat16 on a GPU, in single precision on a CPU."""
    on_gpu = device.startswith("cuda")
    size = 1 << (31 if on_gpu else 28)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = best(lambda: target.copy_(source), device)
    side = 8192 if on_gpu else 2048
    kind = torch.bfloat16 if on_gpu else torch.float32
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    product = best(lambda: a @ b, device)
    return Ceilings(2 * size / copy, 2 * side**3 / product)


def best(action: Callable[[], Any], device: str, rounds: int = 5) -> float:
    """The least of some calls, after one that does not count."""
    action()
    return min(seconds(action, device) for _ in range(rounds))
