"""Where units are computed: one device, the model of the latest task, threads that decode."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from dmbp.bench.photos import Photos
from dmbp.bench.plan import Task
from dmbp.bench.store import Row
from dmbp.bench.subject import weights_digest
from dmbp.bench.unit import Unit
from dmbp.bench.work import Worker, in_one_line
from dmbp.errors import ModelError
from dmbp.models import Classifier

AHEAD = 1
"""Units decoded while another is computed; more would hold memory and win nothing."""

DECODERS = 8
"""Threads at most: about what keeps an accelerator fed with photos from a camera."""


class Station:
    """Computes units one after the other; units come task by task, so one model is kept."""

    def __init__(self, load: Callable[[Task], Classifier], *, decoders: int = DECODERS) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(decoders)
        self._latest: tuple[Task, Worker] | None = None

    def photos(self, unit: Unit) -> Photos:
        """Begin to decode a unit's photos."""
        return Photos(unit, self._threads)

    def rows(self, unit: Unit, photos: Photos) -> Iterator[list[Row]]:
        """The rows of a unit, part by part; where its model cannot be had, why."""
        try:
            worker = self._worker(unit)
        except Exception as error:  # a file that only this machine does not have, or memory
            said = in_one_line(error)
            for part in unit.parts:
                yield [Row(job.cell, failure=said) for job in part]
            return
        for part in unit.parts:
            yield worker.rows(part, photos)

    def close(self) -> None:
        """Stop decoding."""
        self._threads.shutdown(cancel_futures=True)

    def _worker(self, unit: Unit) -> Worker:
        if self._latest is None or self._latest[0] != unit.task:
            self._latest = None  # its memory first
            self._latest = unit.task, self._made(unit)
        return self._latest[1]

    def _made(self, unit: Unit) -> Worker:
        classifier = self._load(unit.task)
        if weights_digest(classifier) != unit.subject.weights:
            raise ModelError(
                f"the weights of {unit.task.model} are not those that the run began with: give "
                "every worker the same file"
            )
        return Worker(unit.task, classifier)
