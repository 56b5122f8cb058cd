"""A unit in somebody's hands: what of it is done, and how often whoever had it was lost."""

from dataclasses import dataclass

from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit

MOST_TRIES = 3
"""Of one part of a unit. A machine that goes takes a worker along once; what ends three workers in
a row (a crash in a kernel, memory that the system takes back) will end the next."""

IN_HAND = 2
"""Units that a worker has at once: one is computed, the photos of the other are decoded."""


@dataclass
class Assignment:
    """A unit less what has been reported, and the workers lost over its first part."""

    unit: Unit
    lost: int = 0

    @property
    def finished(self) -> bool:
        """Whether nothing is left of it."""
        return not self.unit.parts

    def report(self) -> None:
        """The first part is done."""
        self.unit, self.lost = self.unit.rest(), 0

    def lose(self, why: str) -> list[ResultRow]:
        """A worker was lost over it: the rows of the part given up for that, mostly none."""
        self.lost += 1
        if self.lost < MOST_TRIES:
            return []
        said = f"{self.lost} workers in a row were lost over it; the last {why}"
        rows = [ResultRow(job.cell, failure=said) for job in self.unit.parts[0]]
        self.report()
        return rows
