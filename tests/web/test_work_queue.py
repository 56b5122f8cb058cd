"""The queue: order, time limits, cancelling, and a process that ends."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dmbp.errors import WorkerError
from dmbp.web import work_queue
from dmbp.web.work_queue import Answer, Job, JobFailed, Position, WorkQueue
from dmbp.web.worker_process import OUT_OF_MEMORY, ProgressEvent


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[WorkQueue]:
    given = {"what": "obeys", "seconds": 30.0, **options}
    queue = WorkQueue("tests.web.services:Obedient", **given)
    await queue.start()
    try:
        yield queue
    finally:
        await queue.stop()


def with_queue(use: Callable[[WorkQueue], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with started(**options) as queue:
            await use(queue)

    asyncio.run(run())


async def wait_for_first_event(job: Job) -> None:
    """Wait until a job is computed, without leaving its events."""
    while job in job._queue._waiting:
        await asyncio.sleep(0.01)


def test_answers_progress_and_positions_arrive() -> None:
    async def use(queue: WorkQueue) -> None:
        assert queue.facts == "obedient"
        first, second = queue.submit("steps", "a"), queue.submit("echo", "b")
        events = [event async for event in first]
        told = [event for event in events if isinstance(event, ProgressEvent)]
        assert [(k.step, k.of, k.doing) for k in told] == [(n, 3, f"step {n}") for n in (1, 2, 3)]
        assert events[-1] == Answer(("steps", "a", 1))
        positions = [event.before async for event in second if isinstance(event, Position)]
        assert positions[-2:] == [1, 0]

    with_queue(use)


def test_a_cancelled_job_frees_the_same_process() -> None:
    async def use(queue: WorkQueue) -> None:
        pid = queue.pid
        running, waiting = queue.submit("slow", 0), queue.submit("slow", 1)
        await wait_for_first_event(running)
        waiting.cancel()
        running.cancel()
        assert await queue.submit("echo", 2).answer() == ("echo", 2, 1)
        assert queue.pid == pid

    with_queue(use)


def test_whoever_stops_waiting_cancels() -> None:
    async def use(queue: WorkQueue) -> None:
        job = queue.submit("slow", 0)
        task = asyncio.create_task(job.answer())
        await wait_for_first_event(job)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await queue.submit("echo", 1).answer() == ("echo", 1, 1)

    with_queue(use)


def test_a_process_that_does_not_react_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "GRACE", 0.2)

    async def use(queue: WorkQueue) -> None:
        pid = queue.pid
        deaf = queue.submit("deaf", 0)
        await wait_for_first_event(deaf)
        await asyncio.sleep(0.2)
        deaf.cancel()
        assert await queue.submit("echo", 1).answer() == ("echo", 1, 1)
        assert queue.pid != pid

    with_queue(use)


def test_a_late_job_is_stopped_and_the_next_one_works() -> None:
    async def use(queue: WorkQueue) -> None:
        with pytest.raises(JobFailed, match=r"longer than 0\.5 seconds"):
            await queue.submit("slow", 0).answer()
        assert await queue.submit("echo", 1).answer() == ("echo", 1, 1)

    with_queue(use, seconds=0.5)


def test_a_process_that_ends_fails_one_job_only() -> None:
    async def use(queue: WorkQueue) -> None:
        crashing, next_one = queue.submit("crash", 0), queue.submit("echo", 1)
        with pytest.raises(JobFailed, match="has ended; it is started again") as failed:
            await crashing.answer()
        assert failed.value.refusal.is_bug
        assert await next_one.answer() == ("echo", 1, 1)
        # One that ends while nothing is computed fails no job at all.
        assert queue.pid is not None
        os.kill(queue.pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert await queue.submit("echo", 2).answer() == ("echo", 2, 1)

    with_queue(use)


def test_errors_become_sentences_without_tracebacks(capfd: pytest.CaptureFixture[str]) -> None:
    async def use(queue: WorkQueue) -> None:
        said: dict[str, str] = {}
        for kind in ("wrong", "bug", "memory"):
            with pytest.raises(JobFailed) as failed:
                await queue.submit(kind, 0).answer()
            said[kind] = str(failed.value)
        assert said["wrong"] == "this cannot be asked"
        assert said["memory"] == OUT_OF_MEMORY
        assert "KeyError" in said["bug"]
        assert "secret" not in said["bug"]

    with_queue(use)
    assert "secret" in capfd.readouterr().err  # the server's own output has it


def test_jobs_of_one_shape_are_computed_together() -> None:
    async def use(queue: WorkQueue) -> None:
        queue.together = 3
        blocking = queue.submit("steps", 0)
        like = [queue.submit("echo", k, shape=(8, 8)) for k in range(2)]
        other = queue.submit("echo", "other", shape=(9, 9))
        alone = queue.submit("echo", "alone")
        assert (await blocking.answer())[2] == 1
        assert [await job.answer() for job in like] == [("echo", 0, 2), ("echo", 1, 2)]
        assert await other.answer() == ("echo", "other", 1)
        assert await alone.answer() == ("echo", "alone", 1)

    with_queue(use)


def test_a_service_that_cannot_start_says_why() -> None:
    async def use() -> None:
        async with started(arguments=("refuse",)):
            pass

    with pytest.raises(WorkerError, match="there is no such model"):
        asyncio.run(use())
