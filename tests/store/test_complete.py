"""complete: many jobs at once, each guarded by its token."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.races import committed, rival
from tests.store.steps import about, add, add_many, claim, end_lease, holds, job_row, lines, rows, run, running, status


def complete(conn: sa.Connection, queue: Queue, *jobs: store.claim) -> list[str]:
    return sorted(store.complete(conn, queue.tables, jobs=jobs))


def test_a_completed_job(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", completed_retention=100, mutex_keys=["a", "b"])
    job = running(any_conn, queue, "n", {"a": 1})
    assert store.mark_timed_out(any_conn, queue.tables, jobs=[job]) == [job.id]
    assert complete(any_conn, queue, job) == [job.id]
    row = job_row(any_conn, job.id)
    assert (row["status"], row["attempts"]) == ("completed", 1)
    assert (row["finished_at"], row["expires_at"]) == (about(0), about(100))
    assert [row[name] for name in ("lock_token", "locked_by", "locked_until", "timed_out_at")] == [None] * 4
    assert row["started_at"] is not None
    assert (holds(any_conn), lines(any_conn)) == ({}, [])
    assert rows(any_conn, "SELECT count(*) FROM sqlane_payloads") == [0]


def test_repeating_it_changes_nothing(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue)
    assert complete(any_conn, queue, job, job) == [job.id]
    before = rows(any_conn, "SELECT j.* FROM sqlane_jobs AS j")
    assert complete(any_conn, queue, job) == []
    assert rows(any_conn, "SELECT j.* FROM sqlane_jobs AS j") == before


@pytest.mark.parametrize(("retention", "left", "expires"), [(0, 0, []), (None, 1, [None])])
def test_a_retention_of_nothing_and_for_ever(
    any_conn: sa.Connection, queue: Queue, retention: float | None, left: int, expires: list[None]
) -> None:
    queue.define("n", completed_retention=retention, mutex_keys=["k"])
    job = running(any_conn, queue, "n", 1)
    other = running(any_conn, queue, "other")
    assert complete(any_conn, queue, job) == [job.id]
    assert rows(any_conn, "SELECT expires_at FROM sqlane_jobs WHERE id = :id", id=job.id) == expires
    assert rows(any_conn, "SELECT id FROM sqlane_payloads") == [other.id]
    assert holds(any_conn) == {}
    assert status(any_conn, other.id) == "running"
    assert complete(any_conn, queue, job) == []


def test_many_at_once_and_only_those(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("gone", completed_retention=0)
    ids = [id for name in ("n", "gone") for id in add_many(any_conn, queue, 20, name)]
    jobs = claim(any_conn, queue, *ids)
    assert complete(any_conn, queue, *jobs[::2]) == ids[::2]
    counts = "SELECT job_name, status, count(*) FROM sqlane_jobs GROUP BY 1, 2 ORDER BY 1, 2"
    assert rows(any_conn, counts) == [("gone", "running", 10), ("n", "completed", 10), ("n", "running", 10)]
    assert rows(any_conn, "SELECT count(*) FROM sqlane_payloads") == [20]
    assert complete(any_conn, queue) == []


def test_a_bare_lock_is_enough_and_frees_the_keys(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["k"])
    assert complete(any_conn, queue, JobLock(job.id, job.lock_token)) == [job.id]
    assert holds(any_conn) == {}


def test_keys_are_freed_also_when_the_job_is_not_there_any_more(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["k"])
    run(any_conn, "DELETE FROM sqlane_jobs")
    assert complete(any_conn, queue, job) == []
    assert holds(any_conn) == {}


def test_a_lost_lease_frees_only_its_own_holds(any_conn: sa.Connection, queue: Queue) -> None:
    old = running(any_conn, queue, mutex_keys=["k"], token="old")
    end_lease(any_conn, old.id)
    store.recover_stale(any_conn, queue.tables, id=old.id, lease=0, stall_delay=0)
    [new] = claim(any_conn, queue, old.id, token="new")
    assert complete(any_conn, queue, old) == []
    assert holds(any_conn) == {"k": (new.id, False)}
    assert status(any_conn, new.id) == "running"


def test_a_late_finish_ends_its_linger(any_conn: sa.Connection, queue: Queue) -> None:
    """The recovered handler has returned: the key need not linger any more."""
    old = running(any_conn, queue, mutex_keys=["k"])
    end_lease(any_conn, old.id)
    store.recover_stale(any_conn, queue.tables, id=old.id, lease=60)
    assert holds(any_conn) == {"k": (old.id, True)}
    assert complete(any_conn, queue, old) == []
    assert holds(any_conn) == {}
    assert status(any_conn, old.id) == "pending"


def test_two_that_complete_the_same_jobs_in_opposite_order(engine: sa.Engine, queue: Queue) -> None:
    """One lock order: the second waits for the first and then finds nothing to do."""
    jobs = committed(engine, lambda conn: claim(conn, queue, *[add(conn, queue, mutex_keys=[k]) for k in "cab"]))
    with engine.connect() as one:
        assert complete(one, queue, *jobs) == sorted(job.id for job in jobs)
        with rival(engine, lambda conn: complete(conn, queue, *reversed(jobs))) as result:
            one.commit()
        assert result.result() == []
        assert rows(one, "SELECT DISTINCT attempts FROM sqlane_jobs") == [1]


def test_after_a_rolled_back_rival_it_is_completed(engine: sa.Engine, queue: Queue) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    with engine.connect() as one:
        store.retry(one, queue.tables, job=job)
        with rival(engine, lambda conn: complete(conn, queue, job)) as result:
            one.rollback()
        assert result.result() == [job.id]
        assert job_row(one, job.id)["status"] == "completed"
