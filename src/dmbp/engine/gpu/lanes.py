"""Running independent branches of a network side by side, on several CUDA streams.

The convolutions of a single image leave most of a GPU idle; if a network branches, those of one
branch can run beside those of another. CUDA streams are called lanes here, because a stream is
already one of the two masked passes. Lanes matter only while an iteration is captured: the CUDA
graph keeps nothing but the dependencies between kernels. The table gives the longest chain of
dependent instructions as a share of all instructions, and the milliseconds that 200 iterations take
on an H200, sequentially and on lanes:

    GoogLeNet      0.40      207 and 114 for one image, 311 and 224 for eight
    SqueezeNet     0.74       74 and  76
    ResNet50       0.96      173 and 172 for one image, 342 and 344 for eight
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MAX_ROWS_FOR_LANES = 8
"""The largest batch whose kernels leave room on the GPU for others beside them."""

MAX_CHAIN_SHARE = 0.6
"""The largest share of all instructions in the longest chain for which lanes are used."""

MAX_LANES = 4


@dataclass(frozen=True)
class LaneSlot:
    """The lane that an instruction runs on, and the instructions that it waits for.

    Attributes:
        lane: The index of the lane; instructions on one lane run in program order.
        waits_for: The positions of instructions on other lanes that must finish first.
    """

    lane: int
    waits_for: tuple[int, ...] = ()


def assign_lanes(needs: Sequence[Sequence[int]], *, lanes: int = MAX_LANES) -> list[LaneSlot]:
    """Assign a lane to every instruction; `needs` lists the earlier ones that each depends on.

    An instruction continues the lane of one that it depends on, if that is the lane's latest.
    Others get a lane whose latest instruction they have to wait for anyway, or a new one. If there
    are `lanes` lanes already, they queue up on the one whose latest instruction is the oldest.
    """
    slots: list[LaneSlot] = []
    waited: list[int] = []  # for every instruction, a bit for each one that finishes before it
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
    """Choose a lane for an instruction; `before` has a bit for each one that finishes before it."""
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
    """Decides on which CUDA stream each instruction of a program runs."""

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
        """Launch on the instruction's lane, after those it waits for, except skipped ones."""
        slot = self._slots[position]
        stream = self._streams[slot.lane]
        for event in self._events_before(slot):
            stream.wait_event(event)
        with torch.cuda.stream(stream):
            yield
        if position in self._awaited:
            self._finished[position] = _event_on(stream)

    def keep_alive(self, result: Any) -> None:
        """Keep a result as long as the scheduler."""
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
