"""renew_leases, find_held and mark_timed_out: what a worker writes about jobs that still run."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.races import committed, rival
from tests.store.steps import about, add, claim, end_lease, holds, job_row, running


def test_renewal_counts_from_now(any_conn: sa.Connection, queue: Queue) -> None:
    jobs = [running(any_conn, queue, token=token) for token in ("a", "b")]
    end_lease(any_conn, jobs[0].id)
    assert sorted(store.renew_leases(any_conn, queue.tables, jobs=jobs, lease=100)) == [job.id for job in jobs]
    assert [job_row(any_conn, job.id)["locked_until"] for job in jobs] == about([100, 100])


def test_only_what_still_runs_under_its_token(any_conn: sa.Connection, queue: Queue) -> None:
    mine, taken, done, released = (running(any_conn, queue) for _ in range(4))
    end_lease(any_conn, taken.id)
    store.recover_stale(any_conn, queue.tables, id=taken.id, lease=60, stall_delay=0)
    claim(any_conn, queue, taken.id, token="other", lease=500)
    store.complete(any_conn, queue.tables, jobs=[done])
    store.release(any_conn, queue.tables, job=released)
    everything = [mine, taken, done, released, JobLock("unknown", "t"), JobLock(mine.id, "stale")]
    assert store.renew_leases(any_conn, queue.tables, jobs=everything, lease=100) == [mine.id]
    assert store.find_held(any_conn, queue.tables, jobs=everything) == [mine.id]
    assert store.mark_timed_out(any_conn, queue.tables, jobs=everything) == [mine.id]
    assert job_row(any_conn, taken.id)["locked_until"] == about(500)
    assert job_row(any_conn, taken.id)["timed_out_at"] is None


def test_no_jobs_no_statement(any_conn: sa.Connection, queue: Queue) -> None:
    assert store.renew_leases(any_conn, queue.tables, jobs=[], lease=60) == []
    assert store.find_held(any_conn, queue.tables, jobs=[]) == []
    assert store.mark_timed_out(any_conn, queue.tables, jobs=[]) == []


def test_many_jobs_are_renewed_in_one_statement(conn: sa.Connection, queue: Queue) -> None:
    jobs = claim(conn, queue, *[add(conn, queue) for _ in range(300)])
    assert len(store.renew_leases(conn, queue.tables, jobs=jobs, lease=60)) == 300


@pytest.mark.parametrize("write", ["renew", "mark"])
def test_a_row_locked_elsewhere_is_skipped_and_not_waited_for(engine: sa.Engine, queue: Queue, write: str) -> None:
    locked, free = committed(engine, lambda conn: [running(conn, queue) for _ in range(2)])
    with engine.connect() as one, engine.connect() as two:
        store.complete(one, queue.tables, jobs=[locked])
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        if write == "renew":
            changed = store.renew_leases(two, queue.tables, jobs=[locked, free], lease=60)
        else:
            changed = store.mark_timed_out(two, queue.tables, jobs=[locked, free])
        assert changed == [free.id]


def test_a_finish_waits_for_a_renewal_and_then_succeeds(engine: sa.Engine, queue: Queue) -> None:
    job = committed(engine, lambda conn: running(conn, queue, mutex_keys=["k"]))
    with engine.connect() as one:
        store.renew_leases(one, queue.tables, jobs=[job], lease=500)
        with rival(engine, lambda conn: store.complete(conn, queue.tables, jobs=[job])) as result:
            one.commit()
        assert result.result() == [job.id]
        assert job_row(one, job.id)["locked_until"] is None
        assert holds(one) == {}


def test_a_stuck_job_keeps_its_lock_and_its_keys(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["k"])
    assert store.mark_timed_out(any_conn, queue.tables, jobs=[job]) == [job.id]
    row = job_row(any_conn, job.id)
    assert (row["status"], row["lock_token"]) == ("running", job.lock_token)
    assert row["timed_out_at"] == about(0)
    assert holds(any_conn) == {"k": (job.id, False)}
    assert store.mark_timed_out(any_conn, queue.tables, jobs=[job]) == [], "only newly marked ones"
    assert store.renew_leases(any_conn, queue.tables, jobs=[job], lease=60) == [job.id]


@pytest.mark.parametrize("finish", ["complete", "retry", "fail", "release", "recover"])
def test_the_mark_ends_with_the_run(any_conn: sa.Connection, queue: Queue, finish: str) -> None:
    job = running(any_conn, queue)
    store.mark_timed_out(any_conn, queue.tables, jobs=[job])
    tables = queue.tables
    if finish == "complete":
        store.complete(any_conn, tables, jobs=[job])
    elif finish == "retry":
        store.retry(any_conn, tables, job=job)
    elif finish == "fail":
        store.fail(any_conn, tables, job=job, error={})
    elif finish == "release":
        store.release(any_conn, tables, job=job)
    else:
        end_lease(any_conn, job.id)
        store.recover_stale(any_conn, tables, id=job.id, lease=60)
    row = job_row(any_conn, job.id)
    assert row["status"] != "running"
    assert row["timed_out_at"] is None
