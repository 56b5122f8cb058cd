"""What is of the whole process is changed by one thread at a time.

PyTorch's switches (TF32, deterministic kernels), warnings and logs are not a thread's own; a
model's mode is the model's, and `torch.export` puts tensors that hold nothing in place of its
parameters for a moment. Whoever changes one of these holds `PROCESS_LOCK` until all is as it was:
explanations in several threads come one after the other, each as if it were alone.

Other people's remarks, kept from the terminal: an error reaches the user as one sentence.

Where `torch.export` fails it logs a warning and prints the whole graph to the standard error.
"""

import io
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr
from threading import RLock
from typing import Any

PROCESS_LOCK = RLock()


@contextmanager
def temporarily_set(*switches: tuple[Any, str, Any]) -> Generator[None]:
    """Switches, each (of what, name, value), are set inside, and as they were on the way out."""
    with PROCESS_LOCK:
        before = [_setting(of, name) for of, name, _ in switches]
        try:
            for of, name, value in switches:
                setattr(of, name, value)
            yield
        finally:
            for (of, name, _), value in zip(switches, before, strict=True):
                setattr(of, name, value)


def _setting(of: Any, name: str) -> Any:
    """What a switch is set to: of a reduction in half precision it may be a pair."""
    value, split = getattr(of, name), getattr(of, f"{name}_split_k", None)
    return value if split is None else (value, split)


@contextmanager
def silence_logging() -> Generator[None]:
    """Nothing is logged but errors."""
    with PROCESS_LOCK:
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def silence_output() -> Generator[None]:
    """Neither a log, nor a warning, nor anything printed to the standard error."""
    with silence_logging(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
