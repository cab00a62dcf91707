"""A worker's own jobs that have ended, with leases that nobody could renew: it does not take them from itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, Worker, store
from sqlane_sa.worker import late
from tests.support import wait_until

LOCK = "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE"
STALE = "SELECT count(*) FROM sqlane_jobs WHERE status = 'running' AND locked_until < now()"


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The stale jobs that each sweep has found."""
    found: list[list[str]] = []
    find_stale = store.find_stale

    def find(*args: Any, **options: Any) -> list[str]:
        found.append(find_stale(*args, **options))
        return found[-1]

    monkeypatch.setattr(store, "find_stale", find)
    return found


def test_a_result_whose_row_was_locked_past_the_lease(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, engine: sa.Engine, job: Callable[[str], Job], sql: Any,
    sweeps: list[list[str]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Once the row is free, sweeps come before the result is tried again."""
    monkeypatch.setattr(late, "FIRST_PAUSE", 1.0)
    go = threading.Event()
    runs: list[Any] = []

    @queue.job("slow")
    def slow(payload: Any) -> None:
        runs.append(payload)
        assert go.wait(60)

    id_ = enqueue("slow", mutex_keys=["k"])
    work(lease=1.0, sweep_interval=0.02)
    wait_until(lambda: runs)
    with engine.connect() as rival:
        rival.execute(sa.text(LOCK), {"id": id_})
        go.set()
        wait_until(lambda: sql(STALE) == [(1,)])
        del sweeps[:]
        wait_until(lambda: [id_] in sweeps)
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).stalls, job(id_).attempts, len(runs)) == (0, 1, 1)


def test_a_result_that_an_outage_held_up_past_the_lease(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, engine: sa.Engine, job: Callable[[str], Job]
) -> None:
    """Nobody has taken the job over meanwhile: what its handler did counts."""
    go, ended = threading.Event(), threading.Event()
    runs: list[Any] = []

    @queue.job("slow")
    def slow(payload: Any) -> None:
        runs.append(payload)
        assert go.wait(60)
        ended.set()

    id_ = enqueue("slow", mutex_keys=["k"])
    worker = work(lease=1.0, sweep_interval=0.02)
    wait_until(lambda: runs)
    with engine.connect() as rival:
        rival.execute(sa.text("LOCK TABLE sqlane_jobs IN ACCESS EXCLUSIVE MODE"))
        go.set()
        assert ended.wait(60)
        (held,) = worker._parts.jobs.snapshot()
        wait_until(lambda: held.lease_end + 1.0 < time.monotonic())
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).stalls, job(id_).attempts, len(runs)) == (0, 1, 1)


def test_a_job_that_was_taken_over_is_anybodys(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, engine: sa.Engine, job: Callable[[str], Job], sql: Any
) -> None:
    """Its handler still runs here, and does not count: whoever took it over has died."""
    go = threading.Event()
    runs: list[Any] = []

    @queue.job("slow")
    def slow(payload: Any) -> None:
        runs.append(payload)
        if len(runs) == 1:
            assert go.wait(60)

    id_ = enqueue("slow")
    worker = work(lease=1.0, concurrency=2)
    wait_until(lambda: runs)
    sql("UPDATE sqlane_jobs SET lock_token = 'dead', locked_by = 'dead', locked_until = now() + interval '1 second'")
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).stalls, len(runs)) == (1, 2)
    go.set()
    worker.stop()
