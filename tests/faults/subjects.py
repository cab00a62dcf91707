"""What operations are cut over: the rows they find, and the job that is theirs."""

from __future__ import annotations

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import ClaimedJob

LEASE = 600.0
"""Seconds; in a state it is "later", and what `prepare` leaves is "soon" or "past"."""
KEYS = ["a", "b"]


def new_queue() -> Queue:
    queue = Queue()
    queue.define("plain")
    queue.define("keyed", mutex_keys=KEYS, failure_job="sorry", failed_retention=1000)
    queue.define("sorry")
    return queue


def due(conn: sa.Connection, queue: Queue) -> list[str]:
    """Two jobs, one with keys."""
    jobs = [queue.new("plain", {"n": 1}), queue.new("keyed", {"n": 2})]
    return [enqueued.id for enqueued in queue.enqueue_many(conn, jobs)]


def running(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    """A running job with two keys; another waits for them, and so does a sleeping worker."""
    first = queue.enqueue(conn, "keyed", {"n": 1}).id
    queue.enqueue(conn, "keyed", {"n": 2})
    store.fall_asleep(conn, queue.tables, worker_id="sleeper", duration=LEASE)
    return store.claim(conn, queue.tables, candidate_ids=[first], lock_token=new_id(), locked_by="worker", lease=60)[0]


def stale(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    job = running(conn, queue)
    jobs = queue.tables.jobs
    past = sa.func.statement_timestamp() - sa.text("interval '1 second'")
    conn.execute(jobs.update().where(jobs.c.id == job.id).values(locked_until=past))
    return job


def stale_for_good(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    job = stale(conn, queue)
    jobs = queue.tables.jobs
    conn.execute(jobs.update().where(jobs.c.id == job.id).values(stalls=jobs.c.max_stalls))
    return job


def swept(conn: sa.Connection, queue: Queue) -> None:
    """A linger that has ended, a hold without its job, a place in a line without its job, a dead sleeper."""
    tables = queue.tables
    now = sa.func.statement_timestamp()
    hold = {"job_id": "gone", "lock_token": new_id()}
    conn.execute(tables.mutexes.insert().values(mutex_key="linger", held_until=now, **hold))
    conn.execute(tables.mutexes.insert().values(mutex_key="orphan", **hold))
    conn.execute(tables.waits.insert().values(mutex_key="left over", run_at=now, job_id="gone"))
    conn.execute(tables.sleepers.insert().values(worker_id="dead", asleep_until=now))


def expired(conn: sa.Connection, queue: Queue) -> None:
    """A completed and a failed job past their retention, and one that is not."""
    jobs = queue.tables.jobs
    past = sa.func.statement_timestamp() - sa.text("interval '1 second'")
    for status, at in (("completed", past), ("failed", past), ("failed", None)):
        id_ = queue.enqueue(conn, "plain", {"status": status}).id
        conn.execute(jobs.update().where(jobs.c.id == id_).values(status=status, expires_at=at))


def plain_due_and_running(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    first = queue.enqueue(conn, "plain", {"n": 1}).id
    queue.enqueue(conn, "plain", {"n": 2})
    return store.claim(conn, queue.tables, candidate_ids=[first], lock_token=new_id(), locked_by="worker", lease=60)[0]


def due_and_running(conn: sa.Connection, queue: Queue) -> ClaimedJob:
    job = running(conn, queue)
    queue.enqueue(conn, "plain", {"n": 3})
    return job


def nothing(conn: sa.Connection, queue: Queue) -> None:
    """Nothing to begin with."""


def asleep(conn: sa.Connection, queue: Queue, duration: float = 60) -> None:
    store.fall_asleep(conn, queue.tables, worker_id="worker", duration=duration)
