"""Who computes units: an executor takes them as it can, and gives back rows as they come."""

from collections import deque
from collections.abc import Callable, Generator, Iterator

from dmbp.bench.devices import on_device
from dmbp.bench.photos import Photos
from dmbp.bench.plan import Task
from dmbp.bench.station import AHEAD, Station
from dmbp.bench.store import Row
from dmbp.bench.unit import Unit
from dmbp.data.photo import size_unremarked
from dmbp.models import Classifier

Rows = Generator[list[Row]]
Executor = Callable[[Iterator[Unit]], Rows]


def here(units: Iterator[Unit], *, load: Callable[[Task], Classifier], device: str = "cpu") -> Rows:
    """Compute in this process, the photos of the next unit being decoded meanwhile."""
    station = Station(load)
    waiting: deque[tuple[Unit, Photos]] = deque()
    try:
        with size_unremarked(), on_device(device):
            for unit in units:
                waiting.append((unit, station.photos(unit)))
                if len(waiting) > AHEAD:
                    yield from station.rows(*waiting.popleft())
            while waiting:
                yield from station.rows(*waiting.popleft())
    finally:
        station.close()
