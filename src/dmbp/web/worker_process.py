"""The first code of a worker process: it receives tasks through a pipe and sends answers back.

A `Service` computes. It is made in the process, after a thread has begun to read the pipe, so that
the process ends with its parent even while PyTorch is being imported. If a task is cancelled, the
thread interrupts the main thread, in which `Cancelled` is then raised wherever it is.
"""

import _thread
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from dmbp.errors import DMBPError, first_line, one_line
from dmbp.process import return_free_memory


@dataclass(frozen=True)
class Batch:
    """Asks of one kind that are answered together."""

    number: int
    kind: str
    asks: tuple[Any, ...]


@dataclass(frozen=True)
class Cancel:
    """A request to stop a task."""

    number: int


@dataclass(frozen=True)
class Ready:
    """The process has started; `facts` is what its service says about itself."""

    facts: Any


@dataclass(frozen=True)
class ProgressEvent:
    """A step of a task, of so many, and what it does."""

    number: int
    step: int
    of: int
    doing: str


@dataclass(frozen=True)
class Done:
    """The answers of a task, one for each ask; some may be a `FailedAsk`."""

    number: int
    answers: tuple[Any, ...]


@dataclass(frozen=True)
class FailedAsk:
    """Why there is no answer, in one sentence.

    `is_bug` says that it is nothing that who asked can change.
    """

    sentence: str
    is_bug: bool = False


@dataclass(frozen=True)
class Failed:
    """A task, or the start of the process if there is no number, has failed."""

    number: int | None
    refusal: FailedAsk


class Cancelled(BaseException):
    """The task was cancelled; no handler of `Exception` swallows it."""


Report = Callable[[int, int, str], None]
"""Tells of a step, of so many, and what it does."""


class Service(Protocol):
    """Answers asks in a worker process."""

    def facts(self) -> Any:
        """Return what the service says about itself once it has started."""
        ...

    def answer(self, kind: str, asks: Sequence[Any], report: Report) -> Sequence[Any]:
        """Return an answer, or a `FailedAsk`, for each ask."""
        ...


BUG = "something went wrong inside dmbp; the output of `dmbp serve` says what"
OUT_OF_MEMORY = "there is not enough memory for this photo and this model"


def main(pipe: Any, service: str, arguments: bytes) -> None:
    """Run a service, `module:class`, until it is sent None or the pipe is closed.

    The arguments of the class are pickled: reading them may import PyTorch, which takes seconds.
    """
    if "fork" in multiprocessing.get_all_start_methods():
        # Libraries make locks as they are imported. Those for forked processes have no name, which
        # would be left behind, with a warning, if this process is killed; it starts no others.
        multiprocessing.set_start_method("fork", force=True)
    _Worker(pipe).run(service, arguments)


class _Worker:
    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._tasks: SimpleQueue[Batch | None] = SimpleQueue()
        self._running: int | None = None
        self._cancelled: int | None = None
        signal.signal(signal.SIGINT, self._interrupt)
        Thread(target=self._receive, daemon=True).start()

    def run(self, name: str, arguments: bytes) -> None:
        warnings.simplefilter("ignore")  # there is no terminal to read them on
        try:
            module, _, made = name.partition(":")
            service: Service = getattr(import_module(module), made)(*pickle.loads(arguments))
            self._send(Ready(service.facts()))
        except Exception as error:
            self._send(Failed(None, _refusal(error)))
            return
        while (task := self._tasks.get()) is not None:
            self._answer(service, task)
            del task
            return_free_memory()

    def _answer(self, service: Service, task: Batch) -> None:
        def report(step: int, of: int, doing: str) -> None:
            self._running = None  # an interrupted message would make the pipe unreadable
            self._send(ProgressEvent(task.number, step, of, doing))
            self._running = task.number
            if self._cancelled == task.number:
                raise Cancelled

        try:
            self._running = task.number
            if self._cancelled == task.number:
                raise Cancelled
            answers = tuple(service.answer(task.kind, task.asks, report))
            self._running = None
        except Cancelled:
            self._running = None
            self._send(Failed(task.number, FailedAsk("cancelled")))
        except Exception as error:
            self._running = None
            self._send(Failed(task.number, _refusal(error)))
        else:
            self._send(Done(task.number, answers))

    def _interrupt(self, *_: Any) -> None:
        """Handle an interrupt, which also comes from a terminal, where it is the parent's."""
        if self._running is not None and self._running == self._cancelled:
            raise Cancelled

    def _receive(self) -> None:
        """Receive tasks; exit at once if the parent is gone."""
        try:
            while True:
                message = self._pipe.recv()
                if isinstance(message, Cancel):
                    self._cancelled = message.number
                    _thread.interrupt_main()
                else:
                    self._tasks.put(message)
        except (EOFError, OSError):
            os._exit(0)

    def _send(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            os._exit(0)


def _refusal(error: Exception) -> FailedAsk:
    """Return an exception in one sentence; a bug's traceback is for the server's output only."""
    if isinstance(error, DMBPError):
        return FailedAsk(one_line(error))
    words = ("not enough memory", "out of memory", "alloc_cpu")
    if isinstance(error, MemoryError) or any(word in str(error) for word in words):
        return FailedAsk(OUT_OF_MEMORY)
    traceback.print_exc(file=sys.stderr)
    return FailedAsk(f"{BUG} ({type(error).__name__})", is_bug=True)


def refusal_of(error: DMBPError) -> FailedAsk:
    """Return an error of one of several asks as its answer."""
    return FailedAsk(one_line(error) or first_line(error))
