"""What is of the whole process is changed by one thread at a time.

PyTorch's switches (TF32, deterministic kernels), warnings and logs are not a thread's own; a
model's mode is the model's, and `torch.export` puts tensors that hold nothing in place of its
parameters for a moment. Whoever changes one of these holds `whole_process` until all is as it was:
explanations in several threads come one after the other, each as if it were alone.
"""

from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock
from typing import Any

whole_process = RLock()


@contextmanager
def switched(*switches: tuple[Any, str, Any]) -> Generator[None]:
    """Switches, each (of what, name, value), are set inside, and as they were on the way out."""
    with whole_process:
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
