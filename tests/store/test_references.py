"""Foreign keys of an application's tables to jobs: they lock the job's row FOR KEY SHARE, which holds up nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.races import committed
from tests.store.steps import add, claim, end_lease, run, running

Operation = Callable[[sa.Connection, Queue, Any], Any]

OPERATIONS: dict[str, Operation] = {
    "renew_leases": lambda conn, queue, job: store.renew_leases(conn, queue.tables, jobs=[job], lease=60),
    "mark_timed_out": lambda conn, queue, job: store.mark_timed_out(conn, queue.tables, jobs=[job]),
    "complete": lambda conn, queue, job: store.complete(conn, queue.tables, jobs=[job]),
    "complete_keyed": lambda conn, queue, job: store.complete_keyed(conn, queue.tables, jobs=[job]),
    "complete_unlocked": lambda conn, queue, job: store.complete_unlocked(conn, queue.tables, jobs=[job]),
    "retry": lambda conn, queue, job: store.retry(conn, queue.tables, job=job),
    "release": lambda conn, queue, job: store.release(conn, queue.tables, job=job),
    "fail": lambda conn, queue, job: (
        store.fail(conn, queue.tables, job=job, error=None, build_failure_job=None).changed
    ),
    "recall": lambda conn, queue, job: store.recall(conn, queue.tables, lock_tokens=[job.lock_token], lease=60),
}
BEFORE_IT_STARTS: dict[str, Operation] = {
    "claim": lambda conn, queue, id_: claim(conn, queue, id_),
    "claim_plain": lambda conn, queue, id_: store.claim_plain(conn, queue.tables, lanes=[("n", 0, 1)], **TERMS),
    "complete_and_claim": lambda conn, queue, id_: (
        store.complete_and_claim(conn, queue.tables, jobs=[], lanes=[("n", 0, 1)], after={}, **TERMS).claimed
    ),
}
TERMS: dict[str, Any] = {"lock_token": "t", "locked_by": "w", "lease": 60}


@pytest.fixture
def reference(engine: sa.Engine) -> Iterator[Callable[[str], None]]:
    """Has another transaction, which stays open, refer to the job."""
    committed(engine, lambda conn: run(conn, "CREATE TABLE notes (job_id text REFERENCES sqlane_jobs (id))"))
    with engine.connect() as rival:
        yield lambda id_: run(rival, "INSERT INTO notes VALUES (:id)", id=id_)
        rival.rollback()


def patient(engine: sa.Engine) -> sa.Connection:
    conn = engine.connect()
    run(conn, "SET LOCAL lock_timeout = '20s'")
    return conn


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_job_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None], name: str
) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    reference(job.id)
    with patient(engine) as conn:
        assert OPERATIONS[name](conn, queue, job)


@pytest.mark.parametrize("name", BEFORE_IT_STARTS)
def test_a_pending_job_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None], name: str
) -> None:
    id_ = committed(engine, lambda conn: add(conn, queue))
    reference(id_)
    with patient(engine) as conn:
        assert [job.id for job in BEFORE_IT_STARTS[name](conn, queue, id_)] == [id_]


def test_a_job_with_keys_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None]
) -> None:
    id_ = committed(engine, lambda conn: add(conn, queue, mutex_keys=["k"]))
    reference(id_)
    with patient(engine) as conn:
        claimed, *_ = store.claim_keyed(conn, queue.tables, names=["n"], limit=1, **TERMS)
        assert [job.id for job in claimed] == [id_]


def test_a_stale_job_that_somebody_refers_to(engine: sa.Engine, queue: Queue, reference: Callable[[str], None]) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    committed(engine, lambda conn: end_lease(conn, job.id))
    reference(job.id)
    with patient(engine) as conn:
        recovery = store.recover_stale(conn, queue.tables, id=job.id, lease=60, stall_delay=0)
        assert recovery.status == "pending"


def test_it_is_not_locked(engine: sa.Engine, queue: Queue, reference: Callable[[str], None]) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    reference(job.id)
    with engine.connect() as conn:
        assert store.find_locked(conn, queue.tables, jobs=[JobLock(job.id, job.lock_token)]) == set()
