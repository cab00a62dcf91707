"""Handlers past their timeout: told to stop, and tracked until they do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqlane_sa import Backoff, Job, JobContext, Queue, WorkerError
from tests.support import wait_until

Read = Callable[[str], Job]


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets the handlers of a test return; set at its end in any case."""
    event = threading.Event()
    yield event
    event.set()


def test_a_stuck_handler_keeps_its_job_and_keys(
    queue: Queue, work: Any, enqueue: Any, job: Read, release: threading.Event, sql: Any
) -> None:
    """K116: cancelled is set, the job is marked and renewed, no second attempt overlaps, the end is a failed one."""
    told: list[tuple[bool, str | None]] = []
    runs: list[int] = []

    @queue.job("slow", timeout=0.1, mutex_keys=["k"], max_attempts=2, backoff=lambda attempt: 0)
    def slow(payload: Any, ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            told.append((ctx.cancelled.wait(60), ctx.cancel_reason))
            assert release.wait(60)

    queue.job("other", mutex_keys=["k"])(lambda payload: runs.append(0))
    id_, other = enqueue("slow"), enqueue("other")
    work(lease=0.6)
    stuck = wait_until(lambda: one if (one := job(id_)).timed_out_at else None)
    assert stuck.status == "running"
    first_lease = stuck.locked_until
    wait_until(lambda: job(id_).locked_until != first_lease)
    wait_until(lambda: job(id_).locked_until > first_lease)
    assert (runs, told, job(other).status) == ([1], [(True, "timeout")], "pending")
    (stats,) = (queue_stats for queue_stats in sql("SELECT count(*) FROM sqlane_mutexes WHERE held_until IS NULL"))
    assert stats == (1,)
    release.set()
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).attempts, job(id_).stalls) == (2, 0)
    error = job(id_).last_error
    assert error is not None and error["type"].endswith("JobTimeoutError")


@pytest.mark.parametrize("kind", ["passes on", "swallows", "raises its own", "not timed out"])
def test_what_an_async_timeout_means(queue: Queue, work: Any, enqueue: Any, job: Read, kind: str) -> None:
    """K118: a swallowed cancellation is no success; a TimeoutError of the handler's own is an error like any other."""

    @queue.job("slow", timeout=3600 if kind == "not timed out" else 0.1, max_attempts=3, backoff=lambda attempt: 0)
    async def slow(payload: Any, ctx: JobContext) -> None:
        if kind == "not timed out":
            raise TimeoutError("mine")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if kind == "passes on":
                raise
            if kind == "raises its own":
                raise OSError("on the way out") from None

    id_ = enqueue("slow")
    work()
    failed = wait_until(lambda: one if (one := job(id_)).status == "failed" else None)
    assert failed.attempts == 3
    assert failed.last_error is not None
    assert failed.last_error["type"].endswith("TimeoutError")
    assert failed.last_error["type"].endswith("JobTimeoutError") is (kind != "not timed out")
    assert ("on the way out" in failed.last_error["traceback"]) is (kind == "raises its own")


def hang(release: threading.Event, secret: str) -> None:
    assert release.wait(60), secret


async def hang_async(secret: str) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("kind", ["def", "transactional", "async def", "async def that blocks", "with a cause"])
def test_the_error_of_a_timeout_says_where_the_handler_was(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Any, release: threading.Event, kind: str
) -> None:
    """At the moment of the timeout, in its own frames alone, and with no value of theirs. The timeout leaves time in
    which a transaction is opened."""

    def slow(payload: Any) -> None:
        hang(release, payload)

    async def slow_async(payload: Any) -> None:
        if kind == "async def that blocks":
            hang(release, payload)
        try:
            await hang_async(payload)
        except asyncio.CancelledError:
            if kind == "with a cause":
                raise OSError("on the way out") from None
            raise

    is_async = kind in ("async def", "async def that blocks", "with a cause")
    queue.job("slow", timeout=1, max_attempts=1, transactional=kind == "transactional")(
        slow_async if is_async else slow
    )
    id_ = enqueue("slow", "payload-secret")
    work()
    if kind != "async def" and kind != "with a cause":
        wait_until(lambda: job(id_).timed_out_at)
        release.set()
    failed = wait_until(lambda: one if (one := job(id_)).status == "failed" else None)
    assert failed.last_error is not None and failed.last_error["type"] == "sqlane_sa.JobTimeoutError"
    text = failed.last_error["traceback"]
    *_, own = text.split("Traceback (most recent call last):\n")
    frames = [line.rpartition(" in ")[2] for line in own.splitlines() if line.startswith("  File ")]
    awaits = ["slow_async", "hang_async", "sleep"]
    expected = {"async def": awaits, "with a cause": awaits, "async def that blocks": ["slow_async", "hang"]}
    assert frames[: len(expected.get(kind, ["slow", "hang"]))] == expected.get(kind, ["slow", "hang"])
    assert ("await asyncio.sleep(3600)" if kind in ("async def", "with a cause") else "release.wait(60)") in own
    assert "payload-secret" not in text
    assert ("on the way out" in text) is (kind == "with a cause")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_stop_counts_what_has_overrun_its_timeout(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Any, release: threading.Event, kind: str
) -> None:
    """It would otherwise start again with each worker for ever, under a supervisor and `exit_when_stuck`."""

    def stuck(payload: Any) -> None:
        release.wait(60)

    async def stuck_async(payload: Any) -> None:
        release.wait(60)  # in the event loop, where nothing reaches it

    queue.job("sorry")(lambda payload: None)
    handler = stuck if kind == "def" else stuck_async
    options: Any = {"max_attempts": 2, "backoff": Backoff(base=0.0), "failure_job": "sorry", "mutex_keys": ["k"]}
    queue.job("stuck", timeout=0.05, **options)(handler)
    id_ = enqueue("stuck")
    for attempts, status in ((1, "pending"), (2, "failed")):
        worker = work(shutdown_timeout=0, lease=30)
        wait_until(lambda: job(id_).timed_out_at)
        worker.stop()
        ended = job(id_)
        assert (ended.status, ended.attempts, ended.stalls) == (status, attempts, 0)
        assert ended.last_error is not None and ended.last_error["type"].endswith("JobTimeoutError")
        assert "release.wait(60)" in ended.last_error["traceback"]
        assert sql("SELECT job_id, held_until > statement_timestamp() FROM sqlane_mutexes") == [(id_, True)]
        sql("UPDATE sqlane_mutexes SET held_until = statement_timestamp()")
    release.set()
    assert sql("SELECT status FROM sqlane_jobs WHERE job_name = 'sorry'") == [("pending",)]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_error_of_its_own_at_a_shutdown_is_a_failed_attempt(
    queue: Queue, work: Any, enqueue: Any, job: Read, kind: str
) -> None:
    """Handed back is what the shutdown has cancelled, and nothing else."""
    started = threading.Event()

    def fails(payload: Any, ctx: JobContext) -> None:
        started.set()
        assert ctx.cancelled.wait(60)
        raise ValueError("its own")

    async def fails_async(payload: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("its own") from None

    queue.job("fails", backoff=Backoff(base=3600.0))(fails if kind == "def" else fails_async)
    id_ = enqueue("fails")
    worker = work(shutdown_timeout=0, lease=30)
    assert started.wait(60)
    worker.stop()
    ended = job(id_)
    assert (ended.status, ended.attempts, ended.stalls) == ("pending", 1, 0)
    assert ended.last_error is not None and ended.last_error["message"] == "its own"


def test_all_slots_stuck_is_said_and_may_end_the_worker(
    queue: Queue, work: Any, enqueue: Any, release: threading.Event, caplog: Any
) -> None:
    """F71"""

    @queue.job("stuck", timeout=0.05)
    def stuck(payload: Any) -> None:
        release.wait(60)

    for _ in range(2):
        enqueue("stuck")
    worker = work(concurrency=2, exit_when_stuck=True, shutdown_timeout=0)
    wait_until(lambda: worker.failure)
    assert "2 of 2" in caplog.text
    with pytest.raises(WorkerError, match="2 of 2"):
        worker.stop()
