"""That an idle worker, which would poll once an hour, takes what is enqueued."""

from __future__ import annotations

import random
import threading
from typing import Any

from sqlane_sa import JobContext, Queue
from tests.support import wait_until


def test_no_job_waits_for_the_next_poll(queue: Queue, work: Any, enqueue: Any) -> None:
    """B35: enqueued while the worker starts, works, is about to wait and waits. One that got lost between two waits
    would not run before this test has given up; all other ways to find it take a second at most (`sleep.LOOKS`)."""
    started: list[str] = []
    ran = threading.Event()

    @queue.job("quick", completed_retention=0)
    def quick(payload: Any, ctx: JobContext) -> None:
        started.append(ctx.id)
        ran.set()

    chance = random.Random(35)
    work(poll_interval=3600, lease=3600, sweep_interval=3600)
    for n in range(1000):
        ran.clear()
        enqueue("quick")
        if chance.random() < 0.8:
            assert ran.wait(60)
            # From the moment at which the handler is done to well after the worker has gone to sleep.
            threading.Event().wait(chance.choice((0, 0, 0.0005, 0.001, 0.002, 0.004, 0.01)))
        if n % 100 == 0:
            wait_until(lambda: len(started) == n + 1)  # noqa: B023
    wait_until(lambda: len(started) == 1000)
