"""No session of a worker is idle in a transaction, whatever its handlers do."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import JobContext, Queue

SESSIONS = """
SELECT query, state LIKE 'idle in transaction%' AND clock_timestamp() - xact_start > interval '1 s' AS left_open
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

LAST = 2.0


@pytest.mark.parametrize("kind", ["def", "async def", "idle"])
def test_no_transaction_is_left_open(queue: Queue, work: Any, engine: sa.Engine, kind: str) -> None:
    """B40: while handlers run over several leases, and while the worker idles."""
    running, go = threading.Semaphore(0), threading.Event()
    large = "x" * 100_000  # read by the handler's own look, not with the claim

    def wait(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue("other")
        running.release()
        assert go.wait(60)

    async def wait_async(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue("other")
        running.release()
        while not go.is_set():
            await asyncio.sleep(0.01)

    queue.job("wait", mutex_keys=lambda payload: [payload[:9]])(wait if kind == "def" else wait_async)
    queue.job("other")(lambda payload: None)
    with engine.begin() as conn:
        for n in range(0 if kind == "idle" else 4):
            queue.enqueue(conn, "wait", f"{n:09}{large}")
    work(lease=0.6, sweep_interval=0.3)
    if kind != "idle":
        for _ in range(4):
            assert running.acquire(timeout=60)
    watcher = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    seen: set[str] = set()
    end = time.monotonic() + LAST
    try:
        while time.monotonic() < end:
            for session in watcher.execute(sa.text(SESSIONS)):
                seen.add(session.query[:6])
                assert not session.left_open, session.query
    finally:
        watcher.close()
        go.set()
    assert "LISTEN" in seen, "the sessions watched are not the worker's"
