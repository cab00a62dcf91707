"""Mutex keys through workers: never two at a time, and in order."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, Worker
from tests.support import wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]


class Runs:
    """Counts who holds a key; and the order in which each key's jobs began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self.overlaps = 0
        self.order: dict[str, list[int]] = defaultdict(list)

    def begin(self, payload: dict[str, Any]) -> None:
        with self._lock:
            self.overlaps += not self._held.isdisjoint(payload["keys"])
            self._held.update(payload["keys"])
            for key in payload["keys"]:
                self.order[key].append(payload["n"])

    def end(self, payload: dict[str, Any]) -> None:
        with self._lock:
            self._held.difference_update(payload["keys"])


@pytest.mark.parametrize("jobs", [300])
def test_two_workers_keep_exclusion_and_order(queue: Queue, engine: sa.Engine, jobs: int) -> None:
    """Several keys per job, two names, priorities against the order: no overlap and no inversion."""
    runs = Runs()

    def handle(payload: dict[str, Any]) -> None:
        runs.begin(payload)
        threading.Event().wait(0.001)
        runs.end(payload)

    async def handle_async(payload: dict[str, Any]) -> None:
        handle(payload)

    names = ("keyed", "other")
    queue.job("keyed", mutex_keys=lambda p: p["keys"])(handle)
    queue.job("other", mutex_keys=lambda p: p["keys"])(handle_async)
    with engine.begin() as conn:
        for n in range(jobs):
            keys = [f"a{n % 7}", f"b{n % 5}"][: 1 + n % 2]
            queue.enqueue(conn, names[n % 3 == 0], {"n": n, "keys": keys}, priority=-n % 10)
    threads = [threading.Thread(target=Worker(engine, queue, **SHORT).run_until_idle) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Worker(engine, queue, **SHORT).run_until_idle()
    assert runs.overlaps == 0
    assert sum(map(len, runs.order.values())) == jobs + jobs // 2
    for key, order in runs.order.items():
        assert order == sorted(order), key
    with engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM sqlane_mutexes")).scalar() == 0
        assert conn.execute(sa.text("SELECT count(*) FROM sqlane_waits")).scalar() == 0


def test_a_held_key_starves_no_other(queue: Queue, work: Any, engine: sa.Engine, enqueue: Any, job: Read) -> None:
    """E58: 1,000 jobs of better priority behind one held key; the other keys start at once."""
    go = threading.Event()

    @queue.job("hold", mutex_keys=["a"])
    def hold(payload: Any) -> None:
        assert go.wait(60)

    order: list[int] = []
    queue.job("behind", mutex_keys=["a"])(order.append)
    queue.job("free")(lambda payload: None)
    holder = enqueue("hold")
    worker = work(concurrency=10)
    wait_until(lambda: job(holder).status == "running")
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("behind", n, priority=-n % 50 - 100) for n in range(1000)))
    letters = [enqueue("free", mutex_keys=[letter]) for letter in "bcdefghijklmnopqrstuvwxyz"]
    for id_ in letters:
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
    assert order == []
    go.set()
    wait_until(lambda: len(order) >= 100, 60)
    worker.stop()
    assert order == list(range(len(order)))
    assert worker.failure is None


def test_a_job_in_backoff_does_not_block_its_key(queue: Queue, run: Any, enqueue: Any, job: Read) -> None:
    """E57"""

    @queue.job("bad", mutex_keys=["k"], backoff=lambda attempt: 3600)
    def bad(payload: Any) -> None:
        raise ValueError

    queue.job("good", mutex_keys=["k"])(lambda payload: None)
    later, failing, good = enqueue("good", delay=3600), enqueue("bad"), enqueue("good")
    run()
    assert [job(id_).status for id_ in (later, failing, good)] == ["pending", "pending", "completed"]


def test_a_job_that_waits_for_its_key_hides_no_later_ones(
    queue: Queue, work: Any, engine: sa.Engine, enqueue: Any, job: Read
) -> None:
    """It is due and first in its lane; the worker would look again in an hour, and nobody enqueues."""
    go = threading.Event()

    @queue.job("hold", mutex_keys=["a"])
    def hold(payload: Any) -> None:
        assert go.wait(60)

    queue.job("lane", mutex_keys=lambda payload: [payload])(lambda payload: None)
    worker = work(poll_interval=3600)
    # Until then an enqueue notifies nobody, and one that crosses the last look costs a poll.
    wait_until(lambda: worker._parts.loop.asleep and worker._parts.jobs.waiting)
    holder = enqueue("hold")
    wait_until(lambda: job(holder).status == "running")
    wait_until(lambda: worker._parts.loop.asleep and worker._parts.jobs.waiting)
    with engine.begin() as conn:
        blocked = queue.enqueue(conn, "lane", "a").id
        later = queue.enqueue(conn, "lane", "b", delay=0.3).id
    wait_until(lambda: job(later).status == "completed")
    assert job(blocked).status == "pending"
    go.set()
    wait_until(lambda: job(blocked).status == "completed")
    assert worker.failure is None
