"""What a run has done so far, of how many cells, and how fast."""

from collections.abc import Sequence
from dataclasses import dataclass

from dmbp.bench.store import Row


@dataclass
class Tally:
    """Cells of a run: computed, failed, there already, of a total; a few numbers for any run.

    `failed_before` are those there already that failed when they were tried; `left_out` is how many
    tasks could not be asked.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    kept: int = 0
    failed_before: int = 0
    left_out: int = 0

    def count(self, rows: Sequence[Row]) -> None:
        """Count what has been computed."""
        failed = sum(row.failure is not None for row in rows)
        self.failed += failed
        self.done += len(rows) - failed

    def keep(self, count: int, failed: int) -> None:
        """Count what was there already, and what of it had failed."""
        self.kept += count
        self.failed_before += failed

    @property
    def left(self) -> int:
        """Cells that are still to be tried."""
        return self.total - self.done - self.failed - self.kept

    def pace(self, seconds: float) -> str:
        """How fast it goes after some seconds, how long the rest takes at that, what failed.

        What was there already took no time and says nothing of the rest.
        """
        rate = (self.done + self.failed) / max(seconds, 1e-9)
        left = f", {_duration(self.left / rate)} left" if rate > 0 else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{rate:.3g} a second{left}{failed}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
