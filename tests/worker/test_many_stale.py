"""Many jobs stall at once when a machine dies: they come back together, and around one that cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.worker.running import RunningJobs
from sqlane_sa.worker.sweeper import Sweeper

Sql = Callable[..., list[Any]]

STALE = 350
INSERT_STALE = """
INSERT INTO sqlane_jobs (id, job_name, status, lock_token, locked_by, locked_until, stalls, mutex_keys, failure_job)
SELECT 'stale-' || lpad(n::text, 4, '0'), 'n', 'running', 'token', 'dead', now() - interval '1 min', n % 5,
       ARRAY['k' || n], 'react'
FROM generate_series(1, :n) AS n"""
LEFT = "SELECT id FROM sqlane_jobs WHERE status = 'running'"


class Counted:
    """Opens transactions as a worker's `Database` does; `begun` counts them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.begun = 0

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        self.begun += 1
        with self._engine.begin() as conn:
            yield conn


@pytest.fixture
def database(engine: sa.Engine) -> Counted:
    return Counted(engine)


@pytest.fixture
def sweeper(database: Counted, queue: Queue, sql: Sql) -> Sweeper:
    queue.define("react")
    sql(INSERT_STALE, n=STALE)
    sql("INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) SELECT mutex_keys[1], id, 'token' FROM sqlane_jobs")
    return Sweeper(database, queue, RunningJobs(), interval=1.0, lease=30.0, stall_delay=1.0)  # type: ignore[arg-type]


def test_many_stale_jobs_come_back_in_few_transactions(sweeper: Sweeper, database: Counted, sql: Sql) -> None:
    """Each as if it were alone: one stall more and the delay that belongs to it, or failed with its failure job."""
    sweeper.recover()
    assert database.begun <= 1 + STALE // 50
    counts = "SELECT status, stalls, count(*) FROM sqlane_jobs WHERE job_name = 'n' GROUP BY 1, 2 ORDER BY 1 DESC, 2"
    fifth = STALE // 5
    pending = [("pending", stalls, fifth) for stalls in (1, 2, 3)]
    assert sql(counts) == [*pending, ("failed", 4, fifth), ("failed", 5, fifth)]
    delays = "SELECT DISTINCT stalls, round(extract(epoch FROM run_at - updated_at)) FROM sqlane_jobs"
    assert sorted(sql(f"{delays} WHERE status = 'pending' AND job_name = 'n'")) == [(1, 1), (2, 2), (3, 4)]
    assert sql("SELECT count(*) FROM sqlane_jobs WHERE job_name = 'react'") == [(2 * fifth,)]
    assert sql("SELECT count(*) FROM sqlane_mutexes WHERE held_until > now()") == [(STALE,)]
    assert sql("SELECT count(*) FROM sqlane_waits") == [(3 * fifth,)]


def test_one_that_cannot_be_recovered_holds_up_no_other(sweeper: Sweeper, sql: Sql, caplog: Any) -> None:
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE check_violation USING MESSAGE = 'refused'; END $$"
    )
    sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW WHEN (OLD.id = 'stale-0123')"
        " EXECUTE FUNCTION refuse()"
    )
    sweeper.recover()
    assert sql(LEFT) == [("stale-0123",)]
    assert "job stale-0123 stalled and cannot be recovered" in caplog.text


def test_one_at_which_the_connection_is_lost_holds_up_no_other(sweeper: Sweeper, sql: Sql) -> None:
    """The batch is lost with it; from then on each is tried by itself, and that one last."""
    sql(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(5); RETURN NEW; END $$"
    )
    sql(
        "CREATE TRIGGER cut BEFORE UPDATE ON sqlane_jobs FOR EACH ROW WHEN (OLD.id = 'stale-0123')"
        " EXECUTE FUNCTION cut()"
    )
    for _ in range(3):
        with pytest.raises(sa.exc.DBAPIError):
            sweeper.recover()
    assert sql(LEFT) == [("stale-0123",)]


def test_results_are_in_the_order_of_the_ids(engine: sa.Engine, queue: Queue, sql: Sql) -> None:
    sql(INSERT_STALE, n=3)
    queue.define("react")
    ids = ["stale-0003", "gone", "stale-0001"]
    with engine.begin() as conn:
        recovered = store.recover_stale_many(conn, queue.tables, ids=ids, lease=1, stall_delay=0)
        assert [(one.id, one.status, one.stalls) for one in recovered] == [
            ("stale-0003", "failed", 4),
            ("gone", None, 0),
            ("stale-0001", "pending", 2),
        ]
        assert store.recover_stale_many(conn, queue.tables, ids=[], lease=1) == []
