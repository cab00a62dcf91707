"""How soon an idle worker, which would poll once a minute, takes what is enqueued."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from typing import Any

from sqlane_sa import JobContext, Queue
from tests.support import wait_until


def test_no_job_waits_for_the_next_poll(queue: Queue, work: Any, enqueue: Any) -> None:
    """B35: enqueued while the worker starts, works, is about to wait and waits."""
    waited: list[timedelta] = []
    ran = threading.Event()

    @queue.job("quick", completed_retention=0)
    def quick(payload: Any, ctx: JobContext) -> None:
        waited.append(ctx.waited)
        ran.set()

    chance = random.Random(35)
    work(poll_interval=60, lease=60, sweep_interval=60)
    for n in range(1000):
        ran.clear()
        enqueue("quick")
        if chance.random() < 0.8:
            assert ran.wait(60)
            # From the moment at which the handler is done to well after the worker has gone to sleep.
            threading.Event().wait(chance.choice((0, 0, 0.0005, 0.001, 0.002, 0.004, 0.01)))
        if n % 100 == 0:
            wait_until(lambda: len(waited) == n + 1)  # noqa: B023
    wait_until(lambda: len(waited) == 1000)
    assert max(waited) < timedelta(seconds=30), "none waited for the next poll"
