"""The line in front of the page: places, turns, and when to return."""

from collections.abc import Hashable
from contextlib import ExitStack, suppress

import pytest

from dmbp.web.waiting_line import GRACE, LONGEST_PAUSE, LineFull, WaitingLine


class Door:
    """A line, a clock, and those who have a place."""

    def __init__(self, waiting: int, at_once: int = 1) -> None:
        self.now = 0.0
        self.line = WaitingLine(waiting, clock=lambda: self.now)
        self.line.at_once = at_once
        self.served: dict[Hashable, ExitStack] = {}

    def enter(self, who: Hashable) -> None:
        place = ExitStack()
        place.enter_context(self.line.place(who))
        self.served[who] = place

    def leave(self, who: Hashable, after: float = 0) -> None:
        self.now += after
        self.served.pop(who).close()

    def told(self, who: Hashable) -> LineFull:
        with pytest.raises(LineFull) as full:
            self.enter(who)
        return full.value


def test_places_are_those_that_wait_and_those_that_are_served() -> None:
    door = Door(waiting=2, at_once=3)
    for who in range(5):
        door.enter(who)
    assert door.told("a").before == 5
    assert door.told("b").before == 6
    assert door.told("a").before == 5  # who asks again is not counted twice


def test_who_returns_goes_before_those_who_came_later() -> None:
    door = Door(waiting=1)
    for who in ("served", "waiting"):
        door.enter(who)
    door.told("first")
    door.told("second")
    door.leave("served", after=1)
    door.told("newcomer")
    door.told("second")
    door.enter("first")
    door.leave("waiting", after=1)
    door.told("newcomer")
    door.enter("second")
    assert set(door.served) == {"first", "second"}


def test_the_pause_is_what_the_queue_takes() -> None:
    door = Door(waiting=9)
    for who in range(10):
        door.enter(who)
    for who in range(4):
        door.leave(who, after=2)  # one in 2 seconds
        door.enter(who + 10)
    pauses = [door.told(f"outside {k}").retry_after for k in range(5)]
    assert pauses == [2, 4, 6, 8, 10]
    for k in range(5, 60):
        last = door.told(f"outside {k}")
    assert last.retry_after == LONGEST_PAUSE


def test_a_turn_that_nobody_takes_is_lost() -> None:
    door = Door(waiting=1)
    for who in ("served", "waiting"):
        door.enter(who)
    pause = door.told("gone").retry_after
    door.leave("served")
    door.told("newcomer")
    door.now += pause + GRACE + 0.1
    door.enter("newcomer")


def test_turns_hold_nobody_up_while_there_is_nothing_to_do() -> None:
    door = Door(waiting=1, at_once=2)
    for who in range(3):
        door.enter(who)
    door.told("gone")
    door.told("gone, too")
    door.leave(0)
    door.told("newcomer")
    door.leave(1)
    door.enter("newcomer")
    door.told("another")


def test_a_failed_request_gives_its_place_back() -> None:
    door = Door(waiting=0)
    for _ in range(3):
        with suppress(ValueError), door.line.place("x"):
            raise ValueError
    door.enter("y")


def test_a_hundred_clients_are_served_in_the_order_of_coming() -> None:
    """Each asks twice: nobody's second request is served before everybody's first."""
    door = Door(waiting=8, at_once=4)
    due = {(who, 0): 0.0 for who in range(100)}
    entered: list[tuple[int, int]] = []
    while due or door.served:
        for request in [request for request, when in due.items() if when <= door.now]:
            try:
                door.enter(request)
            except LineFull as full:
                due[request] = door.now + full.retry_after
                continue
            entered.append(request)
            del due[request]
        who, number = next(iter(door.served))
        door.leave((who, number), after=0.5)
        if number == 0:
            due[who, 1] = door.now
    assert [number for _, number in entered] == [0] * 100 + [1] * 100
