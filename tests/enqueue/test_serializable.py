"""Applications at SERIALIZABLE beside a worker: an enqueue adds no conflict of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sqlane_sa import Queue, Worker
from tests.enqueue.business import Order
from tests.support import long_run

THREADS = 8


@pytest.mark.parametrize("each", [125, pytest.param(1000, marks=long_run())])
@pytest.mark.parametrize("keys", [None, lambda payload: [f"user:{payload % 300}"]], ids=["plain", "keyed"])
def test_enqueues_conflict_with_nobody(
    engine: sa.Engine, queue: Queue, keys: Callable[[Any], list[str]] | None, each: int, record_property: Any
) -> None:
    """G77: transactions that read the application's tables and enqueue, beside a worker that claims and completes."""
    ran: Counter[int] = Counter()
    queue.job("n", mutex_keys=keys)(lambda payload: ran.update([payload]))
    with engine.begin() as conn:
        conn.execute(sa.insert(Order), [{"number": n} for n in range(100)])
    serializable = sa.create_engine(engine.url, isolation_level="SERIALIZABLE", pool_size=THREADS)
    conflicts: list[str] = []
    together = threading.Barrier(THREADS, timeout=60)

    def enqueue_all(thread: int) -> None:
        together.wait()
        for n in range(thread * each, (thread + 1) * each):
            while not enqueued(n):
                pass

    def enqueued(n: int) -> bool:
        try:
            with Session(serializable) as session, session.begin():
                assert session.scalar(sa.select(sa.func.count()).select_from(Order)) == 100
                queue.enqueue(session, "n", n)
        except OperationalError as error:
            conflicts.append(error.orig.sqlstate)  # type: ignore[union-attr]
            return False
        return True

    with Worker(engine, queue, concurrency=20, poll_interval=0.05, lease=60):
        threads = [threading.Thread(target=enqueue_all, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    serializable.dispose()
    Worker(engine, queue, lease=60).run_until_idle()
    record_property("conflicts", len(conflicts))
    print(f"\nreliability: SERIALIZABLE enqueuers | {THREADS} threads, {each} each | {len(conflicts)} conflicts")
    assert conflicts == []
    assert ran == Counter(range(THREADS * each))
