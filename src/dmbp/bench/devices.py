"""Which devices a run uses: `cpu`, `cuda`, `cuda:0,cuda:1`, each with some processes.

>>> devices("cpu", workers=3)
('cpu', 'cpu', 'cpu')
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from dmbp.errors import InputError

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
