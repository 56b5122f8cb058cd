"""A pool of workers: assigns units, collects rows, and replaces workers that die.

Each worker has two units, one to compute and one to decode, and reports every part that it has
computed. If a worker dies, another replaces it and the parts that it had not reported are tried
again; a part on which several workers died in a row is given up. The back end for processes is in
`dmbp.bench.run.local`, that for a Ray cluster in `dmbp.bench.run.ray_cluster`.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit
from dmbp.errors import WorkerError

ResultStream = Generator[list[ResultRow]]
"""Rows in batches; closing the generator ends all workers."""

MAX_ATTEMPTS = 3
"""Attempts at one part of a unit. A machine that goes down kills a worker once; what kills three
workers in a row (a crash in a kernel, the system reclaiming memory) would kill the next, too."""

UNITS_PER_WORKER = 2
"""Units that a worker has at a time: one is computed while photos of the other are decoded."""


@dataclass(eq=False)
class Assignment:
    """The rest of a unit assigned to a worker, and how many workers died on its first part."""

    unit: Unit
    deaths: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether no part remains."""
        return not self.unit.parts

    def finish_part(self) -> None:
        """Remove the first part, which has been computed or given up."""
        self.unit, self.deaths = self.unit.without_first_part(), 0

    def record_death(self, reason: str) -> list[ResultRow]:
        """Count a worker that died on the first part; return its rows if the part is given up."""
        self.deaths += 1
        if self.deaths < MAX_ATTEMPTS:
            return []
        failure = f"{self.deaths} workers in a row were lost over it; the last {reason}"
        rows = self.unit.failed(self.unit.parts[0], failure)
        self.finish_part()
        return rows


@dataclass(eq=False)
class WorkerHandle(ABC):
    """A worker as the pool sees it: its device, and its assignments in the order of work."""

    device: str
    is_ready: bool = False
    assignments: list[Assignment] = field(default_factory=list[Assignment])

    @abstractmethod
    def send(self, assignment: Assignment) -> None:
        """Give the worker a unit to compute."""

    @abstractmethod
    def end(self) -> None:
        """End the worker, even if it is computing."""


Worker = TypeVar("Worker", bound=WorkerHandle)


class WorkerPool(ABC, Generic[Worker]):
    """Computes units on one worker for each entry of `devices`, which may repeat a device.

    A back end implements `start` and `collect`, in which it calls `mark_ready`, `finish_part` and
    `replace` as workers start, report parts and die.
    """

    def __init__(self, units: Iterator[Unit], devices: Sequence[str]) -> None:
        self._new = (Assignment(unit) for unit in units)
        self._returned: deque[Assignment] = deque()
        self._devices = devices
        self._failed_starts = 0
        self.workers: list[Worker] = []

    @abstractmethod
    def start(self, device: str) -> Worker:
        """Start a worker."""

    @abstractmethod
    def collect(self) -> Iterator[list[ResultRow]]:
        """Wait until at least one worker starts, reports or dies; yield the rows that result."""

    @property
    def max_failed_starts(self) -> int:
        """The number of workers in a row that may die before they are ready."""
        return MAX_ATTEMPTS - 1

    def rows(self) -> ResultStream:
        """Yield the rows of all units as they arrive, and end all workers afterwards."""
        try:
            for device in self._devices:  # no more workers than units
                if (assignment := next(self._new, None)) is None:
                    break
                self._returned.append(assignment)
                self.workers.append(self.start(device))
            while self._assign():
                yield from self.collect()
        finally:
            self.stop()

    def stop(self) -> None:
        """End all workers, even if they are computing."""
        for worker in self.workers:
            worker.end()

    def _assign(self) -> bool:
        """Give units to workers with the fewest; return whether any work is left."""
        for count in range(UNITS_PER_WORKER):
            for worker in self.workers:
                idle = worker.is_ready and len(worker.assignments) <= count
                if idle and (assignment := self._next()) is not None:
                    worker.assignments.append(assignment)
                    worker.send(assignment)
        return any(worker.assignments for worker in self.workers) or self._has_more()

    def _next(self) -> Assignment | None:
        return self._returned.popleft() if self._returned else next(self._new, None)

    def _has_more(self) -> bool:
        """Return whether any unit has not been assigned yet."""
        if (assignment := self._next()) is not None:
            self._returned.appendleft(assignment)
        return assignment is not None

    def mark_ready(self, worker: Worker) -> None:
        """Note that a worker has started and may be given units."""
        worker.is_ready, self._failed_starts = True, 0

    def finish_part(self, worker: Worker, assignment: Assignment) -> None:
        """Note that the first part of an assignment has been computed."""
        assignment.finish_part()
        if assignment.is_finished:
            worker.assignments.remove(assignment)

    def replace(self, worker: Worker, reason: str) -> list[ResultRow]:
        """Start another worker in place of one that died, and return its assignments to the pool.

        Args:
            worker: The worker that died.
            reason: How it died, to follow "the last", such as "was killed by signal 9".

        Returns:
            The rows of a part that is given up, if this was its last attempt.

        Raises:
            WorkerError: If more than `max_failed_starts` workers in a row died before they were
                ready.
        """
        self.workers.remove(worker)
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts > self.max_failed_starts:
                raise WorkerError(f"workers for {worker.device} do not start: the last {reason}")
        rows = worker.assignments[0].record_death(reason) if worker.assignments else []
        self._returned.extend(
            assignment for assignment in worker.assignments if not assignment.is_finished
        )
        self.workers.append(self.start(worker.device))
        return rows
