"""Workers on a Ray cluster; the driver writes their rows.

There is a worker for each GPU of the cluster, or for each core if it has no GPU. Photos and weights
must be on a file system that all nodes see under the same paths. A worker that is lost, alone or
with its node, is replaced as soon as the cluster has room.
"""

import socket
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

from dmbp.bench.failures import in_one_line
from dmbp.bench.identity import load_task_model
from dmbp.bench.run.pool import (
    MAX_ATTEMPTS,
    UNITS_PER_WORKER,
    Assignment,
    ResultStream,
    WorkerHandle,
    WorkerPool,
)
from dmbp.bench.run.unit_runner import MAX_DECODERS, UnitRunner
from dmbp.bench.store import ResultRow
from dmbp.bench.units import Unit
from dmbp.data.photo import without_size_warnings
from dmbp.errors import InputError, WorkerError
from dmbp.process import silence_output


def run_on_cluster(units: Iterator[Unit], *, address: str) -> ResultStream:
    """Compute units on the cluster at an address.

    Args:
        units: The units.
        address: "host:port", "auto" for the cluster that this machine is part of, or "local" for
            one that is started on this machine.

    Raises:
        InputError: If Ray is not installed.
        WorkerError: If there is no cluster, or it has neither GPUs nor cores.
    """
    ray = _import_ray()
    is_new = _connect(ray, address)
    try:
        yield from RayPool(ray, units).rows()
    finally:
        if is_new:
            ray.shutdown()


class RayActor:
    """A worker's process on the cluster, which decodes one unit while it computes another."""

    def __init__(self, device: str) -> None:
        decoders = 1 if device == "cpu" else MAX_DECODERS  # there is a worker for each core
        self._runner = UnitRunner(partial(load_task_model, device=device), decoders=decoders)
        self._computing = Lock()
        without_size_warnings().__enter__()  # for the lifetime of the process

    def ready(self) -> None:
        """Return once the worker has started."""

    def rows(self, unit: Unit) -> Iterator[list[ResultRow]]:
        """Yield the rows of a unit, part by part."""
        photos = self._runner.decode(unit)
        with self._computing:
            yield from self._runner.rows(unit, photos)


class RayWorker(WorkerHandle):
    """An actor of the cluster, and the assignment that each of its streams of rows is for."""

    def __init__(self, ray: Any, actor: Any, device: str) -> None:
        super().__init__(device)
        self._ray, self._actor = ray, actor
        self.starting = actor.ready.remote()
        self.streams: dict[Any, Assignment] = {}

    def send(self, assignment: Assignment) -> None:
        """Request the rows of a unit."""
        rows = self._actor.rows.options(num_returns="streaming").remote(assignment.unit)
        self.streams[rows] = assignment

    def end(self) -> None:
        """Kill the actor, which returns its resources to the cluster."""
        self._ray.kill(self._actor)

    def pending(self) -> list[Any]:
        """Return the references that Ray can wait for."""
        return list(self.streams) if self.is_ready else [self.starting]


class RayPool(WorkerPool[RayWorker]):
    """Workers that are actors of a Ray cluster."""

    def __init__(self, ray: Any, units: Iterator[Unit]) -> None:
        count, resources, device = cluster_capacity(ray)
        super().__init__(units, (device,) * count)
        self._ray = ray
        self._actor = ray.remote(max_concurrency=UNITS_PER_WORKER, **resources)(RayActor)

    @property
    def max_failed_starts(self) -> int:
        """The number of workers in a row that may die before they are ready; a node has many."""
        return MAX_ATTEMPTS * len(self._devices)

    def start(self, device: str) -> RayWorker:
        """Request a worker from the cluster."""
        return RayWorker(self._ray, self._actor.remote(device), device)

    def collect(self) -> Iterator[list[ResultRow]]:
        """Wait until a worker is ready, sends rows, or is lost."""
        by_reference = {ref: worker for worker in self.workers for ref in worker.pending()}
        arrived, _ = self._ray.wait(list(by_reference), num_returns=1, fetch_local=False)
        for ref in arrived:
            worker = by_reference[ref]
            try:
                if not worker.is_ready:
                    self._ray.get(ref)
                    self.mark_ready(worker)
                    continue
                rows = self._ray.get(next(ref))
            except StopIteration:
                del worker.streams[ref]
            except self._ray.exceptions.RayError as error:
                worker.end()
                yield self.replace(worker, f"said: {in_one_line(error)}")
            else:
                yield rows
                self.finish_part(worker, worker.streams[ref])


def cluster_capacity(ray: Any) -> tuple[int, dict[str, float], str]:
    """Return how many workers a cluster has room for, the resources of each, and its device."""
    available = ray.cluster_resources()
    gpus, cores = int(available.get("GPU", 0)), int(available.get("CPU", 0))
    if gpus:
        return gpus, {"num_gpus": 1, "num_cpus": min(1, cores / gpus)}, "cuda"
    if cores:
        return cores, {"num_cpus": 1}, "cpu"
    raise WorkerError("the Ray cluster has neither GPUs nor cores to compute on")


def _import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise InputError("a cluster needs Ray: pip install dmbp[ray]") from error


def _connect(ray: Any, address: str) -> bool:
    """Connect to a cluster; return whether the connection is new."""
    if ray.is_initialized():
        return False
    try:
        _check_reachable(address)
        with silence_output():  # Ray logs the traceback of an address that it cannot read
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise WorkerError(
            f"there is no Ray cluster at {address!r} ({in_one_line(error)[:120]}); `ray start "
            "--head` starts one"
        ) from error
    return True


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nothing listens at an address; Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()
