"""Many machines: a Ray cluster's workers compute, the driver's store takes the rows.

A worker for each GPU of the cluster, or for each core where it has none. Paths are those of the
nodes: photos and weights lie on a file system that all of them see. A worker that is lost, alone or
with its node, is replaced as soon as the cluster has room, and what it had in hand is tried again.
"""

import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

from dmbp.bench.identity import task_classifier
from dmbp.bench.run.local import ResultStream
from dmbp.bench.run.pool import IN_HAND, MOST_TRIES, Assignment
from dmbp.bench.run.unit_runner import DECODERS, UnitRunner, in_one_line
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit
from dmbp.data.photo import without_size_warnings
from dmbp.errors import InputError, WorkerError


def cluster(units: Iterator[Unit], *, address: str) -> ResultStream:
    """Compute on the cluster at an address; "auto" is the one this machine is part of."""
    ray = _ray()
    joined = _join(ray, address)
    crew = Crew(ray, units)
    try:
        while crew.hand_out():
            yield from crew.take_in()
    finally:
        crew.stop()
        if joined:
            ray.shutdown()


class Worker:
    """What a worker of the cluster does; two units are in its hands, one is computed."""

    def __init__(self, device: str) -> None:
        decoders = 1 if device == "cpu" else DECODERS  # a worker for each core has one
        self._station = UnitRunner(partial(task_classifier, device=device), decoders=decoders)
        self._one_at_a_time = Lock()
        without_size_warnings().__enter__()  # for as long as the process lives

    def ready(self) -> None:
        """Answers once the worker is there."""

    def rows(self, unit: Unit) -> Iterator[list[ResultRow]]:
        """The rows of a unit, part by part."""
        photos = self._station.photos(unit)
        with self._one_at_a_time:
            yield from self._station.rows(unit, photos)


@dataclass
class Member:
    """A worker as the driver knows it: its handle, and the units in its hands by their answers."""

    handle: Any
    coming: Any
    answers: dict[Any, Assignment] = field(default_factory=dict[Any, Assignment])


class Crew:
    """The workers of a run."""

    def __init__(self, ray: Any, units: Iterator[Unit]) -> None:
        self._ray = ray
        self._new = (Assignment(unit) for unit in units)
        self._again: deque[Assignment] = deque()
        self._stillborn = 0
        count, needs, device = _places(ray)
        remote = ray.remote(max_concurrency=IN_HAND, **needs)(Worker)
        self._hire = partial(remote.remote, device)
        self._members = [self._hired() for _ in range(count)]

    def hand_out(self) -> bool:
        """Fill the hands of all that are there; whether there is anything to wait for."""
        for held in range(IN_HAND):
            for member in self._members:
                there = member.coming is None
                if there and len(member.answers) <= held and (trial := self._next()) is not None:
                    rows = member.handle.rows.options(num_returns="streaming").remote(trial.unit)
                    member.answers[rows] = trial
        return any(member.answers for member in self._members) or self._more()

    def take_in(self) -> Iterator[list[ResultRow]]:
        """Wait until something arrives; the rows that come of it."""
        places: dict[Any, Member] = {}
        for member in self._members:
            places |= dict.fromkeys(member.answers, member)
            if member.coming is not None:
                places[member.coming] = member
        arrived, _ = self._ray.wait(list(places), num_returns=1, fetch_local=False)
        for one in arrived:
            yield from self._answer(places[one], one)

    def stop(self) -> None:
        """Give the cluster its places back."""
        for member in self._members:
            self._ray.kill(member.handle)

    def _answer(self, member: Member, answer: Any) -> Iterator[list[ResultRow]]:
        try:
            if answer is member.coming:
                self._ray.get(answer)
                member.coming, self._stillborn = None, 0
                return
            rows = self._ray.get(next(answer))
        except StopIteration:
            del member.answers[answer]
        except self._ray.exceptions.RayError as error:
            yield self._replace(member, in_one_line(error))
        else:
            yield rows
            member.answers[answer].report()

    def _replace(self, member: Member, why: str) -> list[ResultRow]:
        """Another in its place; what it had in hand is tried again, or given up."""
        self._ray.kill(member.handle)
        self._members.remove(member)
        self._stillborn += member.coming is not None
        if self._stillborn > MOST_TRIES * (len(self._members) + 1):  # a lost node takes many along
            raise WorkerError(f"workers do not start on the cluster; the last said: {why}")
        trials = [trial for trial in member.answers.values() if not trial.finished]
        rows = trials[0].lose(f"said: {why}") if trials else []
        self._again.extend(trial for trial in trials if not trial.finished)
        self._members.append(self._hired())
        return rows

    def _next(self) -> Assignment | None:
        return self._again.popleft() if self._again else next(self._new, None)

    def _more(self) -> bool:
        """Whether there is a unit that nobody has, for the first worker to come."""
        if (trial := self._next()) is not None:
            self._again.appendleft(trial)
        return trial is not None

    def _hired(self) -> Member:
        handle = self._hire()
        return Member(handle, handle.ready.remote())


def _places(ray: Any) -> tuple[int, dict[str, float], str]:
    """How many workers a cluster has room for, what each needs, and its device."""
    there = ray.cluster_resources()
    gpus, cores = int(there.get("GPU", 0)), int(there.get("CPU", 0))
    if gpus:
        return gpus, {"num_gpus": 1, "num_cpus": min(1, cores / gpus)}, "cuda"
    if cores:
        return cores, {"num_cpus": 1}, "cpu"
    raise WorkerError("the Ray cluster has neither GPUs nor cores to compute on")


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise InputError("a cluster needs Ray: pip install dmbp[ray]") from error


def _join(ray: Any, address: str) -> bool:
    """Join a cluster; whether that is new."""
    if ray.is_initialized():
        return False
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise WorkerError(
            f"there is no Ray cluster at {address!r} ({in_one_line(error)[:120]}); `ray start "
            "--head` starts one"
        ) from error
    return True


def _knock(address: str) -> None:
    """An `OSError` at once where nobody listens: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()
