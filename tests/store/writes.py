"""Every write of a worker to a job that it holds, and what each says when it has changed the job: something true."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import ReleaseWrite, RetryWrite

Write = Callable[[sa.Connection, Queue, Any], Any]


def turn(conn: sa.Connection, queue: Queue, job: Any) -> store.Turn:
    """It claims nothing."""
    by: Any = {"lock_token": "turn", "locked_by": "w", "lease": 60}
    return store.complete_and_claim(conn, queue.tables, jobs=[job], lanes=[], after={}, **by)


WRITES: dict[str, Write] = {
    "renew": lambda conn, queue, job: store.renew_leases(conn, queue.tables, jobs=[job], lease=999),
    "find held": lambda conn, queue, job: store.find_held(conn, queue.tables, jobs=[job]),
    "mark timed out": lambda conn, queue, job: store.mark_timed_out(conn, queue.tables, jobs=[job]),
    "complete": lambda conn, queue, job: store.complete(conn, queue.tables, jobs=[job]),
    "complete unlocked": lambda conn, queue, job: store.complete_unlocked(conn, queue.tables, jobs=[job]),
    "complete free": lambda conn, queue, job: store.complete_free(conn, queue.tables, jobs=[job]),
    "complete keyed": lambda conn, queue, job: store.complete_keyed(
        conn, queue.tables, jobs=[SimpleNamespace(id=job.id, lock_token=job.lock_token, mutex_keys=list("abkl"))]
    ),
    "complete and claim": lambda conn, queue, job: not turn(conn, queue, job).skipped,
    "retry": lambda conn, queue, job: store.retry(conn, queue.tables, job=job, error={"a": 1}),
    "retry many": lambda conn, queue, job: store.retry_many(
        conn, queue.tables, retries=[RetryWrite(job.id, job.lock_token, 5, {})]
    ),
    "fail": lambda conn, queue, job: (
        store.fail(conn, queue.tables, job=job, error={}, build_failure_job=queue.build_failure_job).changed
    ),
    "release": lambda conn, queue, job: store.release(conn, queue.tables, job=job),
    "release and linger": lambda conn, queue, job: store.release(conn, queue.tables, job=job, linger=99),
    "release in place": lambda conn, queue, job: store.release(conn, queue.tables, job=job, delay=None),
    "release many": lambda conn, queue, job: store.release_many(
        conn, queue.tables, releases=[ReleaseWrite(job.id, job.lock_token, 5, 99)]
    ),
}
