"""Names beside points, each where it covers the least: no other name, no point and no error bar.

Everything is counted in parts of an axis, from its lower left corner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

BESIDE = 0.03
"""From a point to its name."""

ABOVE = (0.0, 0.05, -0.05, 0.1, -0.1, 0.16, -0.16, 0.22, -0.22)
"""How far up or down a name may move."""


@dataclass(frozen=True)
class Box:
    """Something drawn."""

    left: float
    bottom: float
    right: float
    top: float

    def covers(self, other: "Box") -> float:
        """The area that both share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)


@dataclass(frozen=True)
class Point:
    """A point with the ends of its error bar, and the size of its name."""

    x: float
    y: float
    low: float
    high: float
    width: float
    height: float

    def boxes(self) -> tuple[Box, Box]:
        """The dot and the bar."""
        dot = Box(self.x - 0.012, self.y - 0.02, self.x + 0.012, self.y + 0.02)
        return dot, Box(self.x - 0.004, self.low, self.x + 0.004, self.high)

    def names(self) -> Iterator[tuple[Box, bool]]:
        """Where its name may stand, the nearest first, and whether that is to its left."""
        for up, is_left in product(ABOVE, (False, True)):
            left = self.x - BESIDE - self.width if is_left else self.x + BESIDE
            bottom = self.y + up - self.height / 2
            yield Box(left, bottom, left + self.width, bottom + self.height), is_left


def placed(points: Sequence[Point]) -> list[tuple[Box, bool]]:
    """A place for every point's name, the first points' first."""
    drawn = [box for point in points for box in point.boxes()]
    found: list[tuple[Box, bool]] = []
    for point in points:
        best = min(point.names(), key=lambda name: _cost(name[0], point, drawn))
        drawn.append(best[0])
        found.append(best)
    return found


def _cost(name: Box, point: Point, drawn: Sequence[Box]) -> float:
    """What a name covers, and with far less weight how far away it is."""
    outside = max(0.0, -name.left) + max(0.0, name.right - 1.0)
    outside += max(0.0, -name.bottom) + max(0.0, name.top - 1.0)
    covered = sum(name.covers(box) for box in drawn)
    away = abs((name.bottom + name.top) / 2 - point.y)
    return covered + 0.1 * outside + 0.002 * away
