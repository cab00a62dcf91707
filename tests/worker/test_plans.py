"""Claims of a whole worker under plans of every kind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.support import wait_until

JOINS = ("hashjoin", "mergejoin", "hashagg", "material", "sort")


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("n", [5, 500])
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_a_worker_with_three_slots_runs_three(
    queue: Queue, work: Any, engine: sa.Engine, sql: Any, keyed: bool, n: int, analysed: bool
) -> None:
    """D48: also where nested loops are all that is left, before any ANALYZE, and with a table of one page."""
    go = threading.Event()
    running = threading.Semaphore(0)
    keys = {"mutex_keys": lambda payload: [f"k{payload}"]} if keyed else {}

    @queue.job("wait", **keys)
    def wait(payload: Any) -> None:
        running.release()
        assert go.wait(60)

    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("wait", i) for i in range(n)))
    if analysed:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("VACUUM ANALYZE")
    for method in JOINS:
        sql(f"ALTER DATABASE {engine.url.database} SET enable_{method} = off")
    worker = work(concurrency=3, lease=60)
    counts: set[int] = set()
    for _ in range(3):
        assert running.acquire(timeout=60)
    for _ in range(20):
        counts.add(sql("SELECT count(*) FROM sqlane_jobs WHERE status = 'running'")[0][0])
        worker._parts.loop.wake()
    assert counts == {3}
    go.set()
    wait_until(lambda: sql("SELECT count(*) FROM sqlane_jobs WHERE status = 'completed'") == [(n,)])
