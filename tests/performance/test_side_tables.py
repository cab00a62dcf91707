"""D49 and D54: what stands beside the jobs that are looked for, or deleted, costs them nothing."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, store
from tests.benchmarks.explain import Plan, explained
from tests.performance.usage import used

HISTORY = 20_000
BUSY = 4_000
FREE = 10
ROUNDS = 10
EXPIRED = 1_000

FETCH_BUFFERS = 2_000
"""Of a look that walks past a full window of jobs with one busy key: 500 of them, and the keys behind."""
FETCH_ROWS = 2_600
DELETE_BUFFERS_A_JOB = 6

JOBS = """
INSERT INTO sqlane_jobs (id, job_name, status, run_at, mutex_keys, finished_at, expires_at)
SELECT '{kind}' || lpad(CAST(n AS text), 25, '0'), 'n', '{status}', now() - interval '1 hour', {keys},
       now() - interval '1 hour', CASE WHEN {expired} THEN now() - interval '1 minute' ELSE now() + interval '1 d' END
FROM generate_series(1, {count}) AS n"""
SIDE = (
    "INSERT INTO sqlane_payloads (id, payload) SELECT id, 'null' FROM sqlane_jobs",
    "INSERT INTO sqlane_waits (mutex_key, run_at, job_id) SELECT k, run_at, id FROM sqlane_jobs, unnest(mutex_keys) k"
    " WHERE status = 'pending'",
    "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('held', 'holder', 't')",
)


@pytest.fixture
def filled(engine: sa.Engine, counts: sa.Engine) -> None:
    """Never analysed: ended jobs, some of them expired, many with one busy key, and a few that can start."""
    with engine.begin() as conn:
        for kind, status, keys, count, expired in (
            ("a", "completed", "NULL", HISTORY, False),
            ("b", "completed", "NULL", EXPIRED, True),
            ("c", "pending", "ARRAY['held']", BUSY, False),
            ("d", "pending", "ARRAY['free:' || n]", FREE, False),
        ):
            values = {"kind": kind, "status": status, "keys": keys, "count": count, "expired": expired}
            conn.exec_driver_sql(JOBS.format(**values))
        for statement in SIDE:
            conn.exec_driver_sql(statement)
    engine.dispose()


def test_a_fetch_reads_no_ended_jobs(database_url: str, queue: Queue, filled: None) -> None:
    with explained(database_url) as (engine, plans), engine.connect() as conn:
        store.pin_plans(conn)
        plans.clear()
        found = store.find_candidates(conn, queue.tables, limits_by_name={"n": ROUNDS})
        conn.rollback()
    assert len(found) == FREE
    assert not set().union(*(plan.whole_tables for plan in plans))
    assert sum(plan.buffers for plan in plans) <= FETCH_BUFFERS
    assert sum(plan.rows for plan in plans) <= FETCH_ROWS


def test_no_foreign_keys(engine: sa.Engine) -> None:
    """Each would be a look-up in another table for each row that is deleted."""
    with engine.connect() as conn:
        found = conn.exec_driver_sql("SELECT conname FROM pg_constraint WHERE contype = 'f'")
        assert found.scalars().all() == []


def test_deleting_reads_what_it_deletes(database_url: str, queue: Queue, filled: None) -> None:
    with explained(database_url) as (engine, plans), engine.connect() as conn:
        store.pin_plans(conn)
        plans.clear()
        assert store.delete_expired(conn, queue.tables, limit=EXPIRED) == EXPIRED
        conn.rollback()
    assert not set().union(*(plan.whole_tables for plan in plans))
    assert pages(plans) <= DELETE_BUFFERS_A_JOB * EXPIRED


def pages(plans: list[Plan]) -> int:
    """A deletion that nothing reads from counts at its own node, not at the top."""
    return sum(
        max(int(node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)) for node in plan.nodes)
        for plan in plans
    )


def test_a_start_reads_no_ended_jobs(engine: sa.Engine, counts: sa.Engine, queue: Queue, filled: None) -> None:
    queue.job("other")(lambda payload: None)
    before = used(counts)
    Worker(engine, queue).run_until_idle()
    engine.dispose()
    cost = used(counts).since(before)
    assert cost.unindexed == 0
    # The first sweep deletes what has expired.
    assert cost.rows <= EXPIRED * 12
