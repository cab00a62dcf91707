"""Renewals: which leases count as lost, and from when the new ones count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError

from sqlane_sa import Queue, store
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker import heartbeat as module
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.heartbeat import Heartbeat
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs
from tests.support import wait_until
from tests.worker.clock import Clock

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


def test_one_that_is_lost_is_renewed_no_more(heartbeat: Heartbeat, running: RunningJob, sql: Any) -> None:
    """Nothing of it will be written: another worker is to take it over, however long its handler goes on."""
    before = sql("SELECT locked_until FROM sqlane_jobs")
    running.cancel(LEASE_LOST)
    heartbeat.renew()
    assert sql("SELECT locked_until FROM sqlane_jobs") == before


@pytest.mark.parametrize("state", ["ended", "completing"])
def test_one_that_ends_in_this_moment_is_not(heartbeat: Heartbeat, running: RunningJob, sql: Any, state: str) -> None:
    """Its own write has cleared the token, and the loop has not heard of it yet."""
    setattr(running, state, True)
    take_over(sql)
    heartbeat.renew()
    assert running.cancelled is None


def test_one_whose_row_somebody_has_locked_is_not(heartbeat: Heartbeat, running: RunningJob, engine: sa.Engine) -> None:
    """It cannot be renewed at this beat, and is still ours."""
    ends = running.lease_end
    with engine.begin() as rival:
        rival.exec_driver_sql("SELECT FROM sqlane_jobs FOR UPDATE")
        heartbeat.renew()
    assert (running.cancelled, running.lease_end) == (None, ends)
    heartbeat.renew()
    assert running.lease_end > ends


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


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of each renewal; those that begin with "odd" fail."""
    tried: list[list[str]] = []

    def renew(*_: Any, jobs: list[RunningJob], **__: Any) -> list[str]:
        tried.append([job.id for job in jobs])
        if any(job.id.startswith("odd") for job in jobs):
            raise DataError("UPDATE", {}, Exception("no"))
        return tried[-1]

    monkeypatch.setattr(store, "renew_leases", renew)
    return tried


def hold_all(running: RunningJob, queue: Queue, jobs: RunningJobs, ids: list[str]) -> None:
    jobs.remove([(running, None)])
    for id_ in ids:
        hold(running.claimed._replace(id=id_), queue, jobs).lease_end = 0.0


def test_odd_rows_are_found_by_halves(
    heartbeat: Heartbeat, running: RunningJob, queue: Queue, jobs: RunningJobs, tries: list[list[str]], monkeypatch: Any
) -> None:
    """In few tries; the others are renewed, each once."""
    ids = [f"good {n}" for n in range(64)]
    ids[40] = "odd"
    hold_all(running, queue, jobs, ids)
    monkeypatch.setattr(store, "find_held", lambda *_, **__: ["odd"])
    heartbeat.renew()
    assert len(tries) == 1 + 2 * 6
    assert [job.id for job in jobs.snapshot() if job.lease_end == 0.0] == ["odd"]
    renewed = [id_ for part in tries if "odd" not in part for id_ in part]
    assert sorted(renewed) == sorted(set(ids) - {"odd"})


def test_many_odd_rows_are_left_out_once_a_part_was_renewed(
    heartbeat: Heartbeat, running: RunningJob, queue: Queue, jobs: RunningJobs, tries: list[list[str]], monkeypatch: Any
) -> None:
    ids = ["good", *(f"odd {n}" for n in range(63))]
    hold_all(running, queue, jobs, ids)
    monkeypatch.setattr(store, "find_held", lambda *_, **__: ids)
    heartbeat.renew()
    assert [job.id for job in jobs.snapshot() if job.lease_end > 0.0] == ["good"]


def test_where_no_part_can_be_renewed_the_fault_is_not_in_single_rows(
    heartbeat: Heartbeat, running: RunningJob, queue: Queue, jobs: RunningJobs, tries: list[list[str]]
) -> None:
    """After 25 tries, and not after one for each job."""
    hold_all(running, queue, jobs, [f"odd {n}" for n in range(1000)])
    with pytest.raises(DataError):
        heartbeat.renew()
    assert len(tries) == 25


def test_it_keeps_no_connection_while_there_is_nothing_to_renew(
    heartbeat: Heartbeat, running: RunningJob, queue: Queue, jobs: RunningJobs, sql: Any
) -> None:
    for _ in range(2):
        running.lease_end = 0.0
        heartbeat.renew()
        assert running.lease_end > 0.0
        assert heartbeat._database._conn is not None
        pid = heartbeat._database._conn.scalar(sa.text("SELECT pg_backend_pid()"))
        jobs.remove([(running, None)])
        heartbeat.renew()
        wait_until(lambda pid=pid: sql("SELECT FROM pg_stat_activity WHERE pid = :pid", pid=pid) == [])
        jobs.add(running)


def test_each_lease_is_renewed_twice_before_it_ends_and_once_more(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A16: three beats to a lease, on a fixed schedule; one that was late does not move those after it."""
    clock = Clock().rules(monkeypatch, module)
    heartbeat = Heartbeat(heartbeat._database, heartbeat._tables, RunningJobs(), LEASE)
    beats: list[float] = []
    monkeypatch.setattr(heartbeat, "renew", lambda: beats.append(clock.now))
    start = clock.now
    while clock.now <= start + 2 * LEASE:
        clock.now += heartbeat.run_once() + (5 if len(beats) == 1 else 0)
    assert [beat - start for beat in beats] == [20, 45, 60, 80, 100, 120]
