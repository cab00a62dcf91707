"""Sweeps beside each other, in workers that do not live long, and over backlogs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue, store
from sqlane_sa.worker.running import RunningJobs
from sqlane_sa.worker.sweeper import Sweeper
from tests.support import long_run, wait_until

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]

EXPIRED = """
WITH filled AS (
    INSERT INTO sqlane_payloads (id, payload) SELECT 'old-' || n, to_json(n) FROM generate_series(1, :n) AS n)
INSERT INTO sqlane_jobs (id, job_name, status, finished_at, expires_at)
SELECT 'old-' || n, 'old', CASE n % 2 WHEN 0 THEN 'completed' ELSE 'failed' END,
    now() - interval '2 h', now() - interval '1 h' - n * interval '1 ms' FROM generate_series(1, :n) AS n"""

PATIENCE = 60.0

LEFT = "SELECT count(*) FROM sqlane_jobs WHERE job_name = 'old'"


class Transactions:
    """As a worker's `Database` opens them."""

    def __init__(self, engine: sa.Engine) -> None:
        self.transaction = engine.begin


def limit_deletes(sql: Sql, rows: int) -> None:
    """A DELETE of more rows ends as at the statement timeout."""
    sql(
        "CREATE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql AS $$"
        " DECLARE n bigint; BEGIN SELECT count(*) INTO n FROM gone;"
        f" IF n > {rows} THEN RAISE query_canceled USING MESSAGE = 'a batch of ' || n; END IF; RETURN NULL; END $$"
    )
    sql(
        "CREATE TRIGGER count_deleted AFTER DELETE ON sqlane_jobs REFERENCING OLD TABLE AS gone"
        " FOR EACH STATEMENT EXECUTE FUNCTION count_deleted()"
    )


def test_two_sweepers_hand_a_job_back_once(
    queue: Queue, engine: sa.Engine, enqueue: Any, run: Any, job: Read, sql: Sql, monkeypatch: Any
) -> None:
    """A7: both have found it stale before either takes it back."""
    ran: list[str] = []

    @queue.job("once")
    def once(payload: Any, ctx: JobContext) -> None:
        ran.append(ctx.lock_token)

    id_ = enqueue("once")
    with engine.begin() as conn:
        store.claim(conn, queue.tables, candidate_ids=[id_], lock_token="dead", locked_by="dead", lease=0.001)
    both_found, found = threading.Barrier(2, timeout=60), []
    find_stale = store.find_stale

    def find_together(*args: Any, **options: Any) -> Collection[str]:
        ids = find_stale(*args, **options)
        found.append(list(ids))
        both_found.wait()
        return ids

    monkeypatch.setattr(store, "find_stale", find_together)
    options = {"interval": 1.0, "lease": 0.05, "stall_delay": 0.0}
    sweepers = [Sweeper(Transactions(engine), queue, RunningJobs(), **options) for _ in range(2)]  # type: ignore[arg-type]
    threads = [threading.Thread(target=sweeper.recover) for sweeper in sweepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[id_], [id_]]
    monkeypatch.undo()
    assert (job(id_).status, job(id_).stalls) == ("pending", 1)
    run()
    done = job(id_)
    assert (done.status, done.stalls, done.attempts) == ("completed", 1, 1)
    assert len(ran) == 1 and ran[0] != "dead"


def test_a_worker_that_does_not_live_long_sweeps_too(queue: Queue, work: Any, sql: Sql) -> None:
    """D52: with a sweep interval that none of them lives to see."""
    queue.job("good")(lambda payload: None)
    for n in (1, 1500, 3):
        sql(EXPIRED, n=n)
        worker = work(sweep_interval=3600)
        wait_until(lambda: sql(LEFT) == [(0,)])
        worker.stop()


@pytest.mark.parametrize("n", [70_000, pytest.param(2_000_000, marks=long_run(timeout=1800))])
def test_a_backlog_of_expired_jobs_shrinks_with_every_sweep(
    queue: Queue, work: Any, enqueue: Any, job: Read, engine: sa.Engine, sql: Sql, caplog: Any, n: int
) -> None:
    """D53: in batches that commit one by one, under a timeout that one DELETE of all would not meet; the jobs of
    another worker run meanwhile."""
    sql(EXPIRED, n=n)
    limit_deletes(sql, 1000)
    sql(f"ALTER DATABASE {engine.url.database} SET statement_timeout = '2s'")
    queue.job("quick")(lambda payload: None)
    queue.job("none comes")(lambda payload: None)
    workers = [work(names=["none comes"], sweep_interval=0.05), work(names=["quick"])]
    seen = [n]

    def shrinks_to_nothing() -> bool:
        quick = enqueue("quick")
        wait_until(lambda: job(quick).status == "completed", PATIENCE)
        seen.append(sql(LEFT)[0][0])
        return seen[-1] == 0

    wait_until(shrinks_to_nothing, PATIENCE * max(1, n / 100_000))
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) > 2, "it shrinks in view of the others"
    assert sql("SELECT count(*) FROM sqlane_payloads WHERE id LIKE 'old-%'") == [(0,)]
    assert [worker.failure for worker in workers] == [None, None]
    assert "sweeper" not in caplog.text
    print(f"\nreliability: {n} expired jobs | statement_timeout 2s | gone; {len(seen) - 1} jobs ran meanwhile")


def test_a_batch_that_is_too_slow_is_made_smaller(queue: Queue, work: Any, sql: Sql, caplog: Any) -> None:
    """D53: where the statement timeout is too short for a whole batch, or its rows have very large payloads."""
    sql(EXPIRED, n=2000)
    limit_deletes(sql, 100)
    queue.job("quick")(lambda payload: None)
    worker = work(sweep_interval=0.05)
    wait_until(lambda: sql(LEFT) == [(0,)])
    assert worker.failure is None
    assert "sweeper" not in caplog.text


def test_a_batch_of_one_that_is_too_slow_is_said(queue: Queue, work: Any, sql: Sql, caplog: Any) -> None:
    """D53: an outage of the sweeper, with a line in the log; jobs run."""
    sql(EXPIRED, n=3)
    limit_deletes(sql, 0)
    queue.job("quick")(lambda payload: None)
    work(sweep_interval=0.05)
    wait_until(lambda: "sweeper: OperationalError" in caplog.text)
    assert sql(LEFT) == [(3,)]


def test_retention_counts_from_the_end_of_a_job(queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql) -> None:
    """O150: however long ago a job was created; what waits or runs never expires, and a failure job keeps nothing."""
    go = threading.Event()
    month = 30 * 86400
    queue.job("good", completed_retention=month)(lambda payload: None)
    queue.job("reaction", completed_retention=month)(lambda payload: None)

    @queue.job("bad", max_attempts=1, failed_retention=month, failure_job="reaction")
    def bad(payload: Any) -> None:
        raise ValueError

    @queue.job("long")
    def long(payload: Any) -> None:
        assert go.wait(60)

    queue.define("waiting", completed_retention=0)
    recent = [enqueue("good"), enqueue("bad")]
    live = [enqueue("long"), enqueue("waiting")]
    sql("UPDATE sqlane_jobs SET created_at = created_at - interval '40 days', run_at = run_at - interval '40 days'")
    work()
    for id_, status in zip(recent, ("completed", "failed"), strict=True):
        ended = wait_until(lambda: one if (one := job(id_)).status == status else None)  # noqa: B023
        assert ended.expires_at is not None and ended.finished_at is not None
        assert (ended.expires_at - ended.finished_at).total_seconds() == month
        assert (ended.finished_at - ended.created_at).total_seconds() > 39 * 86400
    # Two sweeps at least: each begins by deleting a row like this one.
    for _ in range(2):
        sql(EXPIRED, n=1)
        wait_until(lambda: sql(LEFT) == [(0,)])
    assert [job(id_).status for id_ in live] == ["running", "pending"]
    assert [job(id_).status for id_ in recent] == ["completed", "failed"]
    sql(
        "UPDATE sqlane_jobs SET finished_at = finished_at - interval '31 days',"
        " expires_at = expires_at - interval '31 days' WHERE job_name IN ('good', 'bad')"
    )
    wait_until(lambda: sql("SELECT count(*) FROM sqlane_jobs WHERE job_name IN ('good', 'bad')") == [(0,)])
    assert sql("SELECT count(*) FROM sqlane_jobs WHERE job_name = 'reaction'") == [(1,)]
    go.set()
