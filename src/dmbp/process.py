"""Process-wide state, changed by one thread at a time and always restored.

PyTorch's switches (TF32, deterministic kernels), Python's warnings and logs belong to the whole
process, a model's mode belongs to every thread that uses the model, and `torch.export` briefly
replaces a model's parameters with tensors that have no data. Code that changes any of these holds
`PROCESS_LOCK` until everything is restored, so explanations in several threads run one after
another, each as if it were alone.

Other libraries' output is silenced the same way, because an error should reach the user as one
sentence: if `torch.export` fails, it logs a warning and prints the whole graph to standard error.
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
    """Return a switch's value; PyTorch sets its half-precision reductions by pairs."""
    value, split = getattr(owner, name), getattr(owner, f"{name}_split_k", None)
    return value if split is None else (value, split)


@contextmanager
def silence_logging() -> Generator[None]:
    """Log nothing but errors inside."""
    with PROCESS_LOCK:
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def silence_output() -> Generator[None]:
    """Suppress logs, warnings and everything printed to standard error inside."""
    with silence_logging(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
