"""Between an enqueue that sees nobody asleep, and a worker that falls asleep and sees no job."""

from __future__ import annotations

import math
import threading
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.worker.sleep import Sleep
from tests.support import wait_until


def test_a_commit_that_crosses_a_worker_falling_asleep_is_found(
    queue: Queue, engine: sa.Engine, work: Any, sql: Any
) -> None:
    """Long before the next poll: the worker looks a few times more, and then no more."""
    ran = threading.Event()
    queue.job("late")(lambda payload: ran.set())
    with engine.begin() as conn:
        queue.enqueue(conn, "late")
        work(poll_interval=3600, sweep_interval=3600)
        wait_until(lambda: sql("SELECT count(*) FROM sqlane_sleepers") == [(1,)])
    assert ran.wait(60)


def test_the_looks_end(queue: Queue) -> None:
    sleep = Sleep(queue.tables, "w", wakeups=True)
    assert sleep.fallen(100.0)
    looks = []
    while sleep.look_at < math.inf:
        looks.append(sleep.look_at)
        sleep.looked(sleep.look_at, sleep.look_at, False)
    assert looks == [100.02, 100.1, 101.0]
    assert not sleep.streaming
    sleep.fallen(110.0)
    assert sleep.look_at == math.inf  # said again, as every 20 s
