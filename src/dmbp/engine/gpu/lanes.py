"""Independent branches of a network side by side, on several CUDA streams.

The convolutions of a single image leave most of a GPU idle; where a network branches, those of one
branch can run beside those of another. CUDA streams are called lanes here, because a stream is
already one of the two masked passes. Lanes matter while an iteration is captured: the CUDA graph
keeps the dependencies between kernels and nothing else. 200 iterations on an H200, sequentially and
on lanes, in milliseconds, with the longest chain of dependent instructions as a share of all:

    GoogLeNet      0.40      207 and 114 for an image, 311 and 224 for eight
    SqueezeNet     0.74       74 and  76
    ResNet50       0.96      173 and 172 for an image, 342 and 344 for eight
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MAX_ROWS_FOR_LANES = 8
"""The largest batch whose kernels leave room for others beside them."""

MAX_CHAIN_SHARE = 0.6
"""The longest chain's share of a program, up to which lanes are worth it."""

MAX_LANES = 4


@dataclass(frozen=True)
class LaneSlot:
    """Where an instruction runs.

    Attributes:
        lane: Its lane; instructions on one lane run in program order.
        waits_for: Instructions on other lanes that must finish first.
    """

    lane: int
    waits_for: tuple[int, ...] = ()


def assign_lanes(needs: Sequence[Sequence[int]], *, lanes: int = MAX_LANES) -> list[LaneSlot]:
    """Assign a lane to every instruction, given which earlier ones each depends on.

    The first instruction that depends on another continues on its lane. Others get a lane whose
    latest instruction they have to wait for anyway, or a new one. If no lane is left, they queue up
    on the one whose latest instruction is the oldest.
    """
    slots: list[LaneSlot] = []
    waited: list[int] = []  # for every instruction, a bit for each that has finished before it
    last: list[int] = []  # the latest instruction of every lane
    for position, needed in enumerate(needs):
        before = 0
        for other in needed:
            before |= waited[other] | 1 << other
        lane = _lane(last, needed, before, lanes)
        if lane == len(last):
            last.append(position)
        else:
            before |= waited[last[lane]] | 1 << last[lane]
            last[lane] = position
        waited.append(before)
        elsewhere = {other for other in needed if slots[other].lane != lane}
        slots.append(LaneSlot(lane, tuple(sorted(elsewhere))))
    return slots


def _lane(last: Sequence[int], needed: Sequence[int], before: int, max_lanes: int) -> int:
    """Choose a lane for an instruction that needs some and comes after all in the bits `before`."""
    continued = [lane for lane, position in enumerate(last) if position in needed]
    free = [lane for lane, position in enumerate(last) if before >> position & 1]
    if continued or free:
        return (continued or free)[0]
    return (
        len(last) if len(last) < max_lanes else min(range(max_lanes), key=lambda lane: last[lane])
    )


def longest_chain(slots: Sequence[LaneSlot]) -> int:
    """Return the length of the longest chain of instructions that wait for one another."""
    last: dict[int, int] = {}
    chains: list[int] = []
    for position, slot in enumerate(slots):
        before = [*slot.waits_for, *([last[slot.lane]] if slot.lane in last else [])]
        chains.append(1 + max((chains[other] for other in before), default=0))
        last[slot.lane] = position
    return max(chains, default=0)


class Scheduler(Protocol):
    """Decides where each instruction of a program runs."""

    def running(self, position: int) -> AbstractContextManager[None]:
        """Return a context in which the instruction at `position` is launched."""
        ...

    def keep_alive(self, result: Any) -> None:
        """Keep a result's memory from being reused while another lane may read it."""
        ...

    def join(self) -> None:
        """Make the first lane wait for all others."""
        ...


class SequentialScheduler:
    """Runs instructions one after another on the current CUDA stream."""

    def running(self, position: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context without effect."""
        return nullcontext()

    def keep_alive(self, result: Any) -> None:
        """Do nothing: the allocator reuses memory in stream order."""

    def join(self) -> None:
        """Do nothing: there is one lane."""


class LaneScheduler:
    """Runs instructions on the lanes assigned to them; the first lane is the current CUDA stream.

    PyTorch's allocator reuses freed memory at once on the CUDA stream that allocated it, without
    knowing whether another lane still reads it. Results are therefore kept as long as the
    scheduler.
    """

    def __init__(self, slots: Sequence[LaneSlot], streams: Sequence[torch.cuda.Stream]) -> None:
        self._slots = slots
        self._streams = streams
        self._awaited = {other for slot in slots for other in slot.waits_for}
        self._started = {0}
        self._start = _event_on(streams[0])
        self._finished: dict[int, torch.cuda.Event] = {}
        self._results: list[Any] = []

    @contextmanager
    def running(self, position: int) -> Generator[None]:
        """Launch on the instruction's lane, after those it waits for that were not skipped."""
        slot = self._slots[position]
        stream = self._streams[slot.lane]
        for event in self._events_before(slot):
            stream.wait_event(event)
        with torch.cuda.stream(stream):
            yield
        if position in self._awaited:
            self._finished[position] = _event_on(stream)

    def keep_alive(self, result: Any) -> None:
        """Keep a result."""
        self._results.append(result)

    def join(self) -> None:
        """Make the first lane wait for all lanes that were used."""
        for lane in sorted(self._started - {0}):
            self._streams[0].wait_stream(self._streams[lane])

    def _events_before(self, slot: LaneSlot) -> Iterator[torch.cuda.Event]:
        if slot.lane not in self._started:
            self._started.add(slot.lane)
            yield self._start
        yield from (self._finished[other] for other in slot.waits_for if other in self._finished)


def _event_on(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
