"""A queue in front of one worker process.

    queue = WorkQueue("module:class", arguments, what="runs the model", seconds=120)
    await queue.start()
    job = queue.submit("explain", ask)
    async for event in job: ...            # positions in the queue, progress, then Done or Failed
    job.cancel()

A job is computed in a process of its own, so that whatever happens there, a crash or a lack of
memory, ends one job with a sentence; the process is started again for the next one. A job that is
cancelled is interrupted, and a process that does not react, or takes too long, is killed.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from threading import Thread
from typing import Any

from dmbp.errors import WorkerError
from dmbp.web.worker_process import (
    Batch,
    Cancel,
    Done,
    Failed,
    FailedAsk,
    ProgressEvent,
    Ready,
    main,
)

START_SECONDS = 600.0
"""How long a process may take to start: it may have to read gigabytes of weights."""

GRACE = 3.0
"""How many seconds a process has to react when its task is cancelled."""

RESTART_PAUSE = 1.0
"""Seconds between attempts to start a process that fails to."""


class JobFailed(Exception):
    """A job has no answer; the refusal says why."""

    def __init__(self, refusal: FailedAsk) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


@dataclass(frozen=True)
class Position:
    """How many jobs are before this one; 0 if it is being computed."""

    before: int


@dataclass(frozen=True)
class Answer:
    """The last event of a job that was done."""

    value: Any


Event = Position | ProgressEvent | Answer | FailedAsk


class Job:
    """An ask in the queue, whose events are read once."""

    def __init__(self, queue: WorkQueue, kind: str, ask: Any, shape: Any) -> None:
        self.kind, self.ask, self.shape = kind, ask, shape
        self.is_over = False
        self._queue = queue
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events; leaving the loop early cancels the job."""
        try:
            while True:
                event = await self._events.get()
                yield event
                if isinstance(event, Answer | FailedAsk):
                    return
        finally:
            self.cancel()

    async def answer(self) -> Any:
        """Return the answer, or raise `JobFailed`; being cancelled cancels the job."""
        async for event in self:
            if isinstance(event, Answer):
                return event.value
            if isinstance(event, FailedAsk):
                raise JobFailed(event)
        raise AssertionError("a job ends with an answer or a refusal")

    def cancel(self) -> None:
        """Stop the job, unless it is over."""
        if not self.is_over:
            self.finish(FailedAsk("cancelled"))
            self._queue.forget(self)

    def tell(self, event: Event) -> None:
        """Add an event."""
        if not self.is_over:
            self._events.put_nowait(event)

    def finish(self, event: Answer | FailedAsk) -> None:
        """Add the last event."""
        self.tell(event)
        self.is_over = True


class WorkQueue:
    """Jobs that wait for one worker process.

    Args:
        service: The class of the service, as `module:class`; it is imported in the process.
        arguments: What it is made with.
        what: What the process does, for sentences.
        seconds: How long a job may be computed.
        together: The most jobs of one kind and shape that are computed together.
    """

    def __init__(
        self,
        service: str,
        arguments: tuple[Any, ...] = (),
        *,
        what: str,
        seconds: float,
        together: int = 1,
    ) -> None:
        self.facts: Any = None
        self._service, self._arguments, self._what = service, pickle.dumps(arguments), what
        self._seconds, self.together = seconds, together
        self._waiting: deque[Job] = deque()
        self._running: Sequence[Job] = ()
        self._wake = asyncio.Event()
        self._numbers = count(1)
        self._process: _Process | None = None
        self._runner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            WorkerError: If it cannot be started; the message is the service's own.
        """
        await self._ensure_process()
        self._runner = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the process; jobs that are not over are refused."""
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner
        for job in (*self._running, *self._waiting):
            job.finish(FailedAsk("the server is shutting down"))
        if self._process is not None:
            await self._process.leave()

    @property
    def pid(self) -> int | None:
        """The number of the process, if it runs."""
        return None if self._process is None else self._process.pid

    def submit(self, kind: str, ask: Any, *, shape: Any = None) -> Job:
        """Add a job; those of one kind and shape, unless that is None, are computed together."""
        job = Job(self, kind, ask, shape)
        self._waiting.append(job)
        self._tell_positions()
        self._wake.set()
        return job

    def forget(self, job: Job) -> None:
        """Remove a cancelled job, or stop computing it."""
        if job in self._waiting:
            self._waiting.remove(job)
            self._tell_positions()
        elif job in self._running and self._process is not None:
            self._process.mailbox.put_nowait(_Abandoned())

    def _tell_positions(self) -> None:
        running = int(bool(self._running))
        for index, job in enumerate(self._waiting):
            job.tell(Position(index + running))

    async def _run(self) -> None:
        while True:
            try:
                process = await self._ensure_process()
            except WorkerError as error:
                while self._waiting:
                    self._waiting.popleft().finish(FailedAsk(str(error), is_bug=True))
                await asyncio.sleep(RESTART_PAUSE)
                continue
            if jobs := self._take():
                self._running = jobs
                self._tell_positions()
                await self._compute(process, jobs)
                self._running = ()
            else:
                self._wake.clear()
                await self._wake.wait()

    def _take(self) -> list[Job]:
        """Take the first job and others like it."""
        if not self._waiting:
            return []
        first = self._waiting[0]
        jobs = [first]
        if first.shape is not None:
            like = [k for k in self._waiting if (k.kind, k.shape) == (first.kind, first.shape)]
            jobs = like[: self.together]
        for job in jobs:
            self._waiting.remove(job)
            job.tell(Position(0))
        return jobs

    async def _ensure_process(self) -> _Process:
        process = self._process
        if process is not None and process.is_alive:
            return process
        process = self._process = _Process(self._service, self._arguments, self._wake)
        try:
            message = await asyncio.wait_for(process.mailbox.get(), START_SECONDS)
        except TimeoutError:
            message = None
        if isinstance(message, Ready):
            self.facts = message.facts
            return process
        await process.end()
        self._process = None
        if isinstance(message, Failed):
            raise WorkerError(message.refusal.sentence)
        raise WorkerError(f"the process that {self._what} could not be started")

    async def _compute(self, process: _Process, jobs: Sequence[Job]) -> None:
        """Compute jobs together, until they are done, cancelled, late, or the process ends."""
        loop = asyncio.get_running_loop()
        task = Batch(next(self._numbers), jobs[0].kind, tuple(job.ask for job in jobs))
        deadline = loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                if not await process.send(task):
                    return await self._give_up(process, jobs, self._ended)
            while True:
                async with asyncio.timeout_at(deadline):
                    message = await process.mailbox.get()
                if isinstance(message, _Abandoned):
                    if all(job.is_over for job in jobs):
                        await process.send(Cancel(task.number))
                        deadline = min(deadline, loop.time() + GRACE)
                elif isinstance(message, _Ended):
                    return await self._give_up(process, jobs, self._ended)
                elif isinstance(message, ProgressEvent) and message.number == task.number:
                    for job in jobs:
                        job.tell(message)
                elif isinstance(message, Failed) and message.number == task.number:
                    for job in jobs:
                        job.finish(message.refusal)
                    return None
                elif isinstance(message, Done) and message.number == task.number:
                    for job, value in zip(jobs, message.answers, strict=True):
                        job.finish(value if isinstance(value, FailedAsk) else Answer(value))
                    return None
        except TimeoutError:
            late = f"this took longer than {self._seconds:g} seconds and was stopped"
            await self._give_up(process, jobs, late)
            return None

    @property
    def _ended(self) -> str:
        return f"the process that {self._what} has ended; it is started again, so please try again"

    async def _give_up(self, process: _Process, jobs: Sequence[Job], sentence: str) -> None:
        for job in jobs:
            job.finish(FailedAsk(sentence, is_bug=True))
        await process.end()


@dataclass(frozen=True)
class _Abandoned:
    """Nobody waits for one of the jobs that are computed any longer."""


@dataclass(frozen=True)
class _Ended:
    """The process has ended."""


class _Process:
    """A worker process, its messages, and a thread that reads them."""

    def __init__(self, service: str, arguments: bytes, wake: asyncio.Event) -> None:
        context = get_context("spawn")  # a forked process cannot use CUDA
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(
            target=main, args=(child_pipe, service, arguments), daemon=True
        )
        self._process.start()
        child_pipe.close()
        self.mailbox: asyncio.Queue[Any] = asyncio.Queue()
        self._wake, self._loop = wake, asyncio.get_running_loop()
        self._has_ended = False
        Thread(target=self._read, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return not self._has_ended and self._process.is_alive()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.is_alive else None

    async def send(self, message: Any) -> bool:
        """Send a message, in a thread because it may be large; return whether it was received."""
        try:
            await asyncio.to_thread(self._pipe.send, message)
        except OSError:
            return False
        return True

    async def leave(self) -> None:
        """Let the process end by itself, so that it tidies up, or kill it."""
        if await self.send(None):
            await asyncio.to_thread(self._process.join, GRACE)
        await self.end()

    async def end(self) -> None:
        """Kill the process: it holds nothing that has to be saved."""
        self._has_ended = True
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    def _read(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            try:
                while True:
                    message = self._pipe.recv()
                    self._loop.call_soon_threadsafe(self.mailbox.put_nowait, message)
            except (EOFError, OSError):
                self._has_ended = True
                self._loop.call_soon_threadsafe(self.mailbox.put_nowait, _Ended())
                self._loop.call_soon_threadsafe(self._wake.set)
            finally:
                self._pipe.close()
