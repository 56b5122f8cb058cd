"""Keeps the time that maps take below a share of the training's time."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch


class Cost:
    """Keeps the time that maps take below a share of the training's.

    The training's time runs from the first step on, and does not count what maps took.
    """

    def __init__(
        self, most: float | None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.most = most
        self.spent = 0.0
        self._clock = clock
        self._started: float | None = None
        self._typical: float | None = None

    def start(self) -> None:
        """Start the training's time, if it does not run yet."""
        if self._started is None:
            self._started = self._clock()

    @property
    def training_seconds(self) -> float:
        """How long the training took so far, without the maps."""
        return 0.0 if self._started is None else self._clock() - self._started - self.spent

    @property
    def share(self) -> float:
        """What maps took so far, as a share of the training's time."""
        return self.spent / max(self.training_seconds, 1e-9)

    @property
    def is_exceeded(self) -> bool:
        """Whether maps took more than they may."""
        return self.most is not None and self.share > self.most

    def allows(self, times: int) -> bool:
        """Return whether so many more maps would be within the budget, at the last ones' cost."""
        if self.most is None or self._typical is None:
            return True
        return self.spent + times * self._typical <= self.most * self.training_seconds

    @contextmanager
    def counted(self, *, is_typical: bool = True) -> Generator[None]:
        """Count what is done inside; `is_typical` says that the next maps will cost as much."""
        _wait_for_gpu()
        begin, is_done = self._clock(), False
        try:
            yield
            is_done = True
        finally:
            _wait_for_gpu()
            seconds = self._clock() - begin
            self.spent += seconds
            if is_typical or not is_done:  # what failed is tried again and costs as much
                self._typical = seconds


def _wait_for_gpu() -> None:
    """Let a GPU finish what it was given, so that its time is counted where it belongs."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
