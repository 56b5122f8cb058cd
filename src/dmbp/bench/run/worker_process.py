"""The first code of a worker process: it binds its life to the driver's, then imports PyTorch.

A worker notices that its driver is gone when it reads its pipe. It cannot do that while it imports
PyTorch, which takes seconds, so a driver that is killed early would leave workers behind.
"""

from typing import Any

from dmbp.process import end_with_parent


def main(pipe: Any, device: str, threads: int) -> None:
    """Run a worker until its pipe is closed or its driver ends."""
    end_with_parent()
    from dmbp.bench.run.local import worker_main

    worker_main(pipe, device, threads)
