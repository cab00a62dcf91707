"""Foreign keys of an application's tables to jobs: they lock the job's row FOR KEY SHARE, which holds up nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.races import committed
from tests.store.steps import add, claim, end_lease, run, running
from tests.store.writes import WRITES

TERMS: dict[str, Any] = {"lock_token": "t", "locked_by": "w", "lease": 60}
LANE = ("n", 0, 1)

LEFT_TO_OTHERS = ("complete free", "complete and claim")
"""A row that somebody has locked in any way is not for these."""

CLAIMS: dict[str, Callable[[sa.Connection, Queue, str], Sequence[store.ClaimedJob]]] = {
    "claim": lambda conn, queue, id_: claim(conn, queue, id_),
    "claim plain": lambda conn, queue, _: store.claim_plain(conn, queue.tables, lanes=[LANE], **TERMS),
    "complete and claim": lambda conn, queue, _: (
        store.complete_and_claim(conn, queue.tables, jobs=[], lanes=[LANE], after={}, **TERMS).claimed
    ),
}


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


@pytest.mark.parametrize("name", [name for name in WRITES if name not in LEFT_TO_OTHERS])
def test_a_job_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None], name: str
) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    reference(job.id)
    with patient(engine) as conn:
        assert WRITES[name](conn, queue, job)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_pending_job_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None], name: str
) -> None:
    id_ = committed(engine, lambda conn: add(conn, queue))
    reference(id_)
    with patient(engine) as conn:
        assert [job.id for job in CLAIMS[name](conn, queue, id_)] == [id_]


def test_a_job_with_keys_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None]
) -> None:
    id_ = committed(engine, lambda conn: add(conn, queue, mutex_keys=["k"]))
    reference(id_)
    with patient(engine) as conn:
        claimed, *_ = store.claim_keyed(conn, queue.tables, names=["n"], limit=1, **TERMS)
        assert [job.id for job in claimed] == [id_]


def test_a_claim_in_doubt_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None]
) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    reference(job.id)
    with patient(engine) as conn:
        assert store.recall(conn, queue.tables, lock_tokens=[job.lock_token], lease=60)


def test_a_failed_job_that_somebody_refers_to(
    engine: sa.Engine, queue: Queue, reference: Callable[[str], None]
) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    committed(engine, lambda conn: store.fail(conn, queue.tables, job=job, error=None, build_failure_job=None))
    reference(job.id)
    with patient(engine) as conn:
        assert store.retry_failed(conn, queue.tables, ids=[job.id]) == [job.id]


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
