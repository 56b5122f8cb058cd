"""Branches of a network side by side, on several streams of a GPU.

The convolutions of a single image leave most of a GPU idle; where a network branches, those of one
branch can run beside those of another. Streams matter while an iteration is recorded: its graph
then holds who waits for whom, and nothing else. 200 iterations on an H200 one by one and side by
side, in milliseconds, and the longest chain as a share of the program:

    GoogLeNet      0.40      207 and 114 for an image, 311 and 224 for eight
    SqueezeNet     0.74       74 and  76
    ResNet50       0.96      173 and 172 for an image, 342 and 344 for eight
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

FEW_ROWS = 8
"""That leave room for others beside them."""

LONGEST = 0.6
"""The share of a program, at most, that is one chain where it is worth it."""

LANES = 4


@dataclass(frozen=True)
class Turn:
    """On which lane something runs, and after which others, that are on other lanes."""

    lane: int
    after: tuple[int, ...] = ()


def turns(needs: Sequence[Sequence[int]], *, lanes: int = LANES) -> list[Turn]:
    """A turn for everything, given what each needs of those before it.

    The first that needs another's result goes on where that one ran; others get a lane of their
    own, or one whose last turn they have to wait for anyway. With none left, they queue up.
    """
    found: list[Turn] = []
    waited: list[int] = []  # a bit for all that a turn comes after
    last: list[int] = []  # of every lane
    for place, needed in enumerate(needs):
        before = 0
        for other in needed:
            before |= waited[other] | 1 << other
        lane = _lane(last, needed, before, lanes)
        if lane == len(last):
            last.append(place)
        else:
            before |= waited[last[lane]] | 1 << last[lane]
            last[lane] = place
        waited.append(before)
        elsewhere = {other for other in needed if found[other].lane != lane}
        found.append(Turn(lane, tuple(sorted(elsewhere))))
    return found


def _lane(last: Sequence[int], needed: Sequence[int], before: int, most: int) -> int:
    going_on = [lane for lane, place in enumerate(last) if place in needed]
    free = [lane for lane, place in enumerate(last) if before >> place & 1]
    if going_on or free:
        return (going_on or free)[0]
    return len(last) if len(last) < most else min(range(most), key=lambda lane: last[lane])


def longest_chain(turns: Sequence[Turn]) -> int:
    """How many turns come one after the other, at most."""
    last: dict[int, int] = {}
    chains: list[int] = []
    for place, turn in enumerate(turns):
        before = [*turn.after, *([last[turn.lane]] if turn.lane in last else [])]
        chains.append(1 + max((chains[other] for other in before), default=0))
        last[turn.lane] = place
    return max(chains, default=0)


class Order(Protocol):
    """When and where each part of a program runs."""

    def turn(self, place: int) -> AbstractContextManager[None]:
        """What runs inside is part `place`."""
        ...

    def keep(self, result: Any) -> None:
        """Keep what part of the program has put out, where its memory is not free for others."""
        ...

    def meet(self) -> None:
        """What comes now comes after all."""
        ...


class OneByOne:
    """Each after the one before it."""

    def turn(self, place: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing to be done."""
        return nullcontext()

    def keep(self, result: Any) -> None:
        """What nobody needs any more is free."""

    def meet(self) -> None:
        """Nothing to wait for."""


class SideBySide:
    """On streams, of which the first is the current one: what is there is there for all.

    Memory that is given back is there at once for others on its own stream, which knows nothing of
    who still reads it on another: results are kept as long as this order.
    """

    def __init__(self, turns: Sequence[Turn], streams: Sequence[torch.cuda.Stream]) -> None:
        self._turns = turns
        self._streams = streams
        self._awaited = {other for turn in turns for other in turn.after}
        self._begun = {0}
        self._start = _event_on(streams[0])
        self._done: dict[int, torch.cuda.Event] = {}
        self._kept: list[Any] = []

    @contextmanager
    def turn(self, place: int) -> Generator[None]:
        """Run on its lane, after those it waits for; a part may be left out."""
        turn = self._turns[place]
        stream = self._streams[turn.lane]
        for event in self._before(turn):
            stream.wait_event(event)
        with torch.cuda.stream(stream):
            yield
        if place in self._awaited:
            self._done[place] = _event_on(stream)

    def keep(self, result: Any) -> None:
        """Keep a result."""
        self._kept.append(result)

    def meet(self) -> None:
        """The first stream waits for the others."""
        for lane in sorted(self._begun - {0}):
            self._streams[0].wait_stream(self._streams[lane])

    def _before(self, turn: Turn) -> Iterator[torch.cuda.Event]:
        if turn.lane not in self._begun:
            self._begun.add(turn.lane)
            yield self._start
        yield from (self._done[other] for other in turn.after if other in self._done)


def _event_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
