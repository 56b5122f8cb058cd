"""The first code of a worker process: it binds its life to the driver's, then imports PyTorch.

A worker notices that its driver is gone when it reads its pipe. It cannot do that while it imports
PyTorch, which takes seconds, so a driver that is killed early would leave workers behind.
"""

import ctypes
import os
import signal
import sys
from multiprocessing import connection, parent_process
from threading import Thread
from typing import Any

PR_SET_PDEATHSIG = 1
"""Linux' number of the request to be sent a signal when the parent ends."""


def main(pipe: Any, device: str, threads: int) -> None:
    """Run a worker until its pipe is closed or its driver ends."""
    end_with_parent()
    from dmbp.bench.run.local import worker_main

    worker_main(pipe, device, threads)


def end_with_parent() -> None:
    """End this process, which multiprocessing has started, as soon as its parent ends."""
    parent = parent_process()
    assert parent is not None
    if sys.platform == "linux":  # a thread would have to wait for the import of libraries
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:  # it has ended already
            os._exit(0)
    else:
        Thread(target=_wait_and_exit, args=(parent.sentinel,), daemon=True).start()


def _wait_and_exit(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(0)
