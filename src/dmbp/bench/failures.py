"""Failures as text, and those after which the whole process is of no use."""

import torch

from dmbp.errors import WorkerError

DEVICE_ERRORS: tuple[type[Exception], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()  # since PyTorch 2.8
)


def raise_if_device_is_lost(error: Exception) -> None:
    """Raise a `WorkerError` if the process can no longer use its GPU: every cell would fail."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DEVICE_ERRORS):
            raise WorkerError(
                f"the device cannot be used any more: {in_one_line(cause)}"
            ) from error
        cause = cause.__cause__


def in_one_line(error: BaseException) -> str:
    """Return the message of an exception as one line of at most 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__
