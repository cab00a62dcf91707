"""A release that comes again: its reply was lost, or the job was recovered meanwhile; its handler still runs."""

import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.steps import end_lease, holds, rows, run, running


def test_keys_linger_on_when_the_release_comes_again(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["a", "b"])
    assert store.release(any_conn, queue.tables, job=job, linger=100)
    until = rows(any_conn, "SELECT held_until FROM sqlane_mutexes")
    assert not store.release(any_conn, queue.tables, job=job, linger=100)
    assert holds(any_conn) == {"a": (job.id, True), "b": (job.id, True)}
    assert rows(any_conn, "SELECT held_until FROM sqlane_mutexes") == until


def test_keys_linger_on_after_a_recovery(any_conn: sa.Connection, queue: Queue) -> None:
    """As long as the recovery says, and not as the worker says that lost its lease."""
    job = running(any_conn, queue, mutex_keys=["a"])
    end_lease(any_conn, job.id)
    store.recover_stale(any_conn, queue.tables, id=job.id, lease=10)
    until = rows(any_conn, "SELECT held_until FROM sqlane_mutexes")
    assert not store.release(any_conn, queue.tables, job=job, linger=1000)
    assert rows(any_conn, "SELECT held_until FROM sqlane_mutexes") == until
    assert not store.release(any_conn, queue.tables, job=job)
    assert holds(any_conn) == {}


def test_keys_linger_of_a_job_that_was_deleted_by_hand(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, mutex_keys=["a"])
    run(any_conn, "DELETE FROM sqlane_jobs")
    assert not store.release(any_conn, queue.tables, job=job, linger=100)
    assert holds(any_conn) == {"a": (job.id, True)}
