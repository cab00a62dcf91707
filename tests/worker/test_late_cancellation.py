"""Handlers that end in the moment of their timeout, and one that never minds it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue, Worker
from tests.support import long_run, wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]

TIMEOUT = 0.02
SLOTS = 8


def handler_threads() -> int:
    return sum(thread.name.startswith(("sqlane-handler", "sqlane-async")) for thread in threading.enumerate())


@pytest.mark.parametrize("n", [800, pytest.param(10_000, marks=long_run())])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_jobs_as_long_as_their_timeout(queue: Queue, engine: sa.Engine, sql: Any, kind: str, n: int) -> None:
    """K117: no exception is injected into a thread, so that none can die of one that comes late; and a cancellation
    that comes late hits no other job. Each ends once, and the threads are as many as before."""
    ends: Counter[int] = Counter()
    most = 0

    def exact(payload: int, ctx: JobContext) -> None:
        nonlocal most
        most = max(most, handler_threads())
        time.sleep(TIMEOUT + (payload % 21 - 10) / 10_000)
        ends[payload] += 1

    async def exact_async(payload: int, ctx: JobContext) -> None:
        try:
            await asyncio.sleep(TIMEOUT + (payload % 21 - 10) / 10_000)
        finally:
            ends[payload] += 1

    queue.job("exact", timeout=TIMEOUT, max_attempts=1)(exact if kind == "def" else exact_async)
    queue.job("after", max_attempts=1)(lambda payload: None)
    before = handler_threads()
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("exact", i) for i in range(n)))
        queue.enqueue_many(conn, (queue.new("after", i, priority=1) for i in range(50)))
    Worker(engine, queue, **(SHORT | {"concurrency": SLOTS, "lease": 60})).run_until_idle()
    assert most <= before + SLOTS
    wait_until(lambda: handler_threads() == before)
    ended = {(row.job_name, row.status): row.n for row in sql(
        "SELECT job_name, status, count(*) AS n FROM sqlane_jobs GROUP BY job_name, status")}  # fmt: skip
    assert ended.pop(("after", "completed")) == 50
    assert set(ended) == {("exact", "completed"), ("exact", "failed")}, "both ends were met"
    assert sum(ended.values()) == n
    met = ", ".join(f"{jobs} {status}" for (_, status), jobs in sorted(ended.items()))
    print(f"\nreliability: as long as their timeout | {n} {kind} jobs, {TIMEOUT:g} s +- 1 ms | {met}")
    assert sql("SELECT DISTINCT attempts, stalls FROM sqlane_jobs") == [(1, 0)]
    errors = "SELECT DISTINCT last_error ->> 'type' FROM sqlane_jobs WHERE status = 'failed'"
    assert [row[0].rpartition(".")[2] for row in sql(errors)] == ["JobTimeoutError"]
    if kind == "def":
        assert set(ends.values()) == {1} and len(ends) == n


def test_a_handler_that_swallows_its_cancellation_for_ever(queue: Queue, work: Any, enqueue: Any, job: Read) -> None:
    """K118: the job is stuck, neither a success nor run again, and keeps its slot and lease; the others run."""
    swallowed, go = threading.Semaphore(0), threading.Event()
    runs: list[int] = []

    @queue.job("deaf", timeout=0.05, max_attempts=2, backoff=lambda attempt: 3600, mutex_keys=["k"])
    async def deaf(payload: Any, ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        while not go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                swallowed.release()

    queue.job("quick")(lambda payload: None)
    id_ = enqueue("deaf")
    work(lease=3.0, concurrency=2)  # one that ends on a busy machine is followed by a second run, in the other slot
    assert swallowed.acquire(timeout=60)
    stuck = wait_until(lambda: one if (one := job(id_)).timed_out_at else None)
    for _ in range(3):
        lease = job(id_).locked_until
        wait_until(lambda: job(id_).locked_until != lease)  # noqa: B023
        quick = enqueue("quick")
        wait_until(lambda: job(quick).status == "completed")  # noqa: B023
    assert (job(id_).status, job(id_).lock_token, job(id_).stalls) == ("running", stuck.lock_token, 0)
    go.set()
    wait_until(lambda: job(id_).status == "pending")
    late = job(id_)
    assert (runs, late.attempts) == ([1], 1)
    assert late.last_error is not None and late.last_error["type"].endswith("JobTimeoutError")
