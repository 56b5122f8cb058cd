"""The line in front of the page: who came first is served first, also among those told to return.

    line = WaitingLine(32)
    with line.place(who):           # LineFull if no place is free
        ...                         # the request waits in a queue, and is answered

A fixed number of requests have a place. Whoever comes when none is free is told to ask again in
about as many seconds as it takes until there is one, and keeps a turn: whoever asks the same again
by then goes before those who came later. A turn that nobody takes is lost after a while, and holds
nobody up who could be served at once.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from math import ceil

GRACE = 10.0
"""How many seconds later than told a request may return and still has its turn."""

LONGEST_PAUSE = 60
"""The most seconds after which a request is told to return."""

MOST_TURNS = 1000
"""How many turns are kept; whoever comes when there are more has none when asking again."""

REMEMBERED = 16
"""From how many requests the seconds that one takes are estimated."""


class LineFull(Exception):
    """No place is free; in about `retry_after` seconds there should be one.

    `before` says how many requests are served or have a turn before this one.
    """

    def __init__(self, retry_after: int, before: int) -> None:
        super().__init__("too many people are asking at once")
        self.retry_after, self.before = retry_after, before


class WaitingLine:
    """Places for requests that wait or are served, and turns for those that were told to return.

    Args:
        waiting: How many requests wait, beyond those that are served at once.
        clock: Tells the seconds.

    Attributes:
        at_once: How many requests are served at once. As long as fewer are here, turns count for
            nothing: there is work for whoever comes.
    """

    def __init__(self, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.at_once = 1
        self._waiting, self._clock = waiting, clock
        self._here = 0
        self._turns: dict[Hashable, float] = {}  # in the order of coming, and until when each lasts
        self._left: deque[float] = deque(maxlen=REMEMBERED)

    @contextmanager
    def place(self, who: Hashable) -> Generator[None]:
        """Keep a place for a request; one that equals an earlier one has its turn.

        Raises:
            LineFull: If no place is free.
        """
        self._enter(who)
        try:
            yield
        finally:
            self._here -= 1
            self._left.append(self._clock())

    def _enter(self, who: Hashable) -> None:
        now = self._clock()
        for late in [other for other, until in self._turns.items() if until < now]:
            del self._turns[late]
        before = list(self._turns).index(who) if who in self._turns else len(self._turns)
        free = self._waiting + self.at_once - self._here
        if free > before or self._here < self.at_once:
            self._turns.pop(who, None)
            if self._here == 0:  # it is not known how long nobody came
                self._left.clear()
                self._left.append(now)
            self._here += 1
            return
        pause = self._pause(before + 1 - free, now)
        if who in self._turns or len(self._turns) < MOST_TURNS:
            self._turns[who] = now + pause + GRACE
        raise LineFull(pause, self._here + before)

    def _pause(self, leaving: int, now: float) -> int:
        """Return in how many seconds so many requests should have left, from 1 to 60."""
        each = (now - self._left[0]) / max(1, len(self._left) - 1)
        return max(1, min(LONGEST_PAUSE, ceil(each * leaving)))
