"""Failures as text, and those after which the whole process is of no use."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class AlikeFailures:
    """Failures whose messages differ only in numbers.

    Attributes:
        example: The most frequent message.
        count: How many failures there are.
        messages: How many different messages they have.
    """

    example: str
    count: int
    messages: int

    def __str__(self) -> str:
        """Return the example after the number of failures."""
        others = f" ({self.messages} messages differ only in numbers)" if self.messages > 1 else ""
        return f"{self.count} × {self.example}{others}"


NUMBER = re.compile(r"(?<![\w./-])[-+]?\d+(\.\d+)?(e[-+]?\d+)?(?![\w/-]|\.\w)", re.IGNORECASE)
"""A number by itself. Those in names of files and modules are not: they say which one it was."""


def group_alike(failures: Iterable[tuple[str, int]]) -> list[AlikeFailures]:
    """Group failures that differ only in numbers.

    Args:
        failures: Messages and how often each occurs, the most frequent first.

    Returns:
        The groups, the most frequent first.

        >>> [str(group) for group in group_alike([("off by 1.4e-01", 6), ("off by 0.3", 2)])]
        ['8 × off by 1.4e-01 (2 messages differ only in numbers)']
    """
    groups: dict[str, list[tuple[str, int]]] = {}
    for message, count in failures:
        groups.setdefault(NUMBER.sub("#", message), []).append((message, count))
    found = [
        AlikeFailures(group[0][0], sum(count for _, count in group), len(group))
        for group in groups.values()
    ]
    return sorted(found, key=lambda group: -group.count)
