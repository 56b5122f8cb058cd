"""Services for tests of the queue: what they do is what they are asked."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from dmbp.errors import InputError
from dmbp.web.worker_process import Report


class Obedient:
    """Answers with what it is asked, or does what the kind says."""

    def __init__(self, first: str = "") -> None:
        if first == "refuse":
            raise InputError("there is no such model")

    def facts(self) -> str:
        return "obedient"

    def answer(self, kind: str, asks: Sequence[Any], report: Report) -> list[Any]:
        if kind == "steps":
            for step in range(3):
                report(step + 1, 3, f"step {step + 1}")
        elif kind == "slow":
            _spin(60)
        elif kind == "deaf":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            time.sleep(60)
        elif kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "wrong":
            raise InputError("this cannot be asked")
        elif kind == "bug":
            raise KeyError("secret")
        elif kind == "memory":
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return [(kind, ask, len(asks)) for ask in asks]


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
