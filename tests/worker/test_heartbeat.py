"""Renewals: which leases count as lost, and from when the new ones count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.heartbeat import Heartbeat
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs

LEASE = 60.0


@pytest.fixture
def jobs() -> RunningJobs:
    return RunningJobs()


@pytest.fixture
def heartbeat(engine: sa.Engine, queue: Queue, jobs: RunningJobs) -> Iterator[Heartbeat]:
    connector = Connector(engine, UNLIMITED)
    database = connector.database()
    yield Heartbeat(database, queue.tables, jobs, LEASE)
    database.close()
    connector.close()


@pytest.fixture
def running(engine: sa.Engine, queue: Queue, jobs: RunningJobs, enqueue: Any) -> RunningJob:
    """A job that is claimed, and held here."""
    queue.job("held")(lambda payload: None)
    id_ = enqueue("held")
    with engine.begin() as conn:
        [claimed] = store.claim(conn, queue.tables, candidate_ids=[id_], lock_token="ours", locked_by="us", lease=LEASE)
    return hold(claimed, queue, jobs)


def hold(claimed: ClaimedJob, queue: Queue, jobs: RunningJobs) -> RunningJob:
    job = RunningJob(claimed, queue.definitions["held"], time.monotonic(), LEASE)
    jobs.add(job)
    return job


def take_over(sql: Any) -> None:
    sql("UPDATE sqlane_jobs SET lock_token = 'theirs'")


def test_a_job_that_another_worker_has_is_lost(heartbeat: Heartbeat, running: RunningJob, sql: Any) -> None:
    take_over(sql)
    heartbeat.renew()
    assert running.cancelled == LEASE_LOST


@pytest.mark.parametrize("state", ["ended", "completing"])
def test_one_that_ends_in_this_moment_is_not(heartbeat: Heartbeat, running: RunningJob, sql: Any, state: str) -> None:
    """Its own write has cleared the token, and the loop has not heard of it yet."""
    setattr(running, state, True)
    take_over(sql)
    heartbeat.renew()
    assert running.cancelled is None


def test_a_lease_counts_from_before_its_renewal(
    heartbeat: Heartbeat, running: RunningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement may have been on its way for long: the lease that is noted here must not outlast the real one."""
    renew, seen = store.renew_leases, []

    def slow(*arguments: Any, **options: Any) -> list[str]:
        seen.append(time.monotonic())
        return renew(*arguments, **options)

    monkeypatch.setattr(store, "renew_leases", slow)
    running.lease_end = 0.0
    heartbeat.renew()
    assert 0.0 < running.lease_end <= seen[0] + LEASE
