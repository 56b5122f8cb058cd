"""A mean that grows one value at a time."""

import math
from dataclasses import dataclass


@dataclass
class Mean:
    """A mean as it grows, with its standard error."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        """The mean so far."""
        return self.total / self.count

    @property
    def error(self) -> float:
        """Its standard error; zero of a single value."""
        if self.count < 2:
            return 0.0
        variance = max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)
        return math.sqrt(variance / self.count)
