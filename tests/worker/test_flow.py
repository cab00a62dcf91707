"""What a worker claims, and when: bounds, fairness, streams and hoards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue
from sqlane_sa.store import Lane
from sqlane_sa.worker.capacity import MAX_AHEAD, Capacity
from sqlane_sa.worker.lanes import MAX_SUPPOSED, Lanes
from sqlane_sa.worker.loop import Loop
from tests.support import wait_until

Read = Callable[[str], Job]


class Gauge:
    """How many handlers run now, and at most ran at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.all = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_def_and_async_share_the_concurrency(queue: Queue, run: Any, engine: sa.Engine) -> None:
    gauge = Gauge()

    @queue.job("sync")
    def sync(payload: Any) -> None:
        with gauge:
            threading.Event().wait(0.002)

    @queue.job("async")
    async def coroutine(payload: Any) -> None:
        with gauge:
            await asyncio.sleep(0.002)

    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new(("sync", "async")[n % 2]) for n in range(400)))
    run(concurrency=5)
    assert (gauge.all, gauge.most, gauge.now) == (400, 5, 0)


def test_long_jobs_are_not_hoarded(queue: Queue, work: Any, engine: sa.Engine, sql: Any) -> None:
    """Each of two workers takes what its slots hold, also after a stream of quick jobs."""
    go = threading.Event()
    queue.job("quick")(lambda payload: None)

    @queue.job("long")
    def long(payload: Any) -> None:
        assert go.wait(60)

    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("quick") for _ in range(2000)))
        queue.enqueue_many(conn, (queue.new("long", priority=1) for _ in range(20)))
    work(concurrency=2, worker_id="one")
    work(concurrency=2, worker_id="two")
    held = (
        "SELECT locked_by, count(*) FROM sqlane_jobs WHERE status = 'running' AND job_name = 'long'"
        " GROUP BY locked_by ORDER BY locked_by"
    )
    wait_until(lambda: sql(held) == [("one", 2), ("two", 2)])
    go.set()


def test_a_job_that_waits_for_a_slot_is_handed_back(
    queue: Queue, work: Any, engine: sa.Engine, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claimed in a stream of quick jobs and then stuck behind slow ones: it keeps its time and uses no attempt; and the
    worker does not claim it again."""
    go, gate = threading.Event(), threading.Event()
    turns: list[bool] = []
    turn = Loop.turn

    def counted(loop: Loop) -> bool:
        turns.append(turn(loop))
        return turns[-1]

    monkeypatch.setattr(Loop, "turn", counted)

    @queue.job("mixed")
    def mixed(payload: int) -> None:
        if payload >= 300:
            gate.set()
            assert go.wait(60)

    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("mixed", n) for n in range(600)))
    before = {row.id: row.run_at for row in sql("SELECT id, run_at FROM sqlane_jobs")}
    work(concurrency=2)
    assert gate.wait(60)
    wait_until(lambda: sql("SELECT count(*) FROM sqlane_jobs WHERE status = 'running'") == [(2,)])
    # In turns after that it would claim again.
    turns.clear()
    wait_until(lambda: len(turns) > 3)
    assert not any(turns[1:])
    back = sql("SELECT id, run_at, attempts, stalls FROM sqlane_jobs WHERE status = 'pending'")
    assert len(back) == 298
    assert all((row.run_at, row.attempts, row.stalls) == (before[row.id], 0, 0) for row in back)
    go.set()


def test_a_backlog_does_not_hide_another_name_or_a_better_priority(
    queue: Queue, work: Any, engine: sa.Engine, enqueue: Any, job: Read
) -> None:
    """F73: while 20,000 jobs of one name are worked off, new ones of another, and better ones, come in between."""
    done: list[str] = []

    @queue.job("big")
    def big(payload: Any) -> None:
        done.append("big")

    queue.job("small")(lambda payload: done.append("small"))
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("big", priority=n % 2) for n in range(20_000)))
    work()
    wait_until(lambda: len(done) > 100)
    ids = [enqueue("small"), enqueue("big", priority=-1)]
    for id_ in ids:
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
    assert len(done) < 20_002


def test_capacity_follows_the_rate_at_which_jobs_end() -> None:
    """10,000 a second while there are some, and a turn of 20 ms: 400 ahead, however long the handlers waited."""
    capacity = Capacity(10)
    assert (capacity.want(0), capacity.want(4), capacity.want(10)) == (10, 6, 0)
    capacity.measure(10, 0.001, 0.02)
    assert capacity.want(0) == 410
    assert (capacity.want(206), capacity.want(205)) == (0, 205)
    capacity.measure(410, 0.041, 0.1)
    assert capacity.want(0) == 10 + MAX_AHEAD
    for turn in range(20):
        capacity.measure(410, 0.041 + turn, 0.02)
    assert capacity.want(10) == 0


def test_after_a_hand_back_nothing_is_claimed_ahead() -> None:
    capacity = Capacity(10)
    capacity.measure(100, 0.001, 0.02)
    assert capacity.want(10) > 0
    capacity.handed_back()
    assert (capacity.want(10), capacity.want(9)) == (0, 1)


def test_hour_long_jobs_are_not_claimed_ahead() -> None:
    capacity = Capacity(10)
    for turn in range(100):
        capacity.measure(turn // 10, 36.0 * turn, 0.02)
        assert capacity.want(10) == 0
        assert capacity.want(9) == 1


def test_lanes_share_by_priority_and_then_alike() -> None:
    lanes = Lanes(["a", "b", "c"])
    due = [Lane("a", 0, False, -5), Lane("b", 0, False, -1), Lane("c", 1, False, 0), Lane("a", 5, True, 0)]
    lanes.refresh([*due, Lane("foreign", -9, False, -9), Lane("c", 2, False, 1000)], now=100.0)
    assert sorted(lanes.share(10, 100.0)) == [("a", 0, 5), ("b", 0, 5)]
    assert {sum(limit for *_, limit in lanes.share(want, 100.0)) for want in (1, 2, 3)} == {1, 2, 3}
    assert {lanes.share(1, 100.0)[0][0] for _ in range(2)} == {"a", "b"}
    lanes.exhausted("a", 0)
    lanes.exhausted("b", 0)
    assert lanes.share(10, 100.0) == [("c", 1, 10)]
    assert lanes.keyed_names(100.0) == {"a"}
    assert lanes.next_due(100.0) == pytest.approx(101.0)
    lanes.claimed("b", 0)
    lanes.suppose_due(100.0)
    assert ("b", 0, 10) in lanes.share(10, 100.0)
    for n in range(2 * MAX_SUPPOSED):
        lanes.claimed(str(n), 0)
    lanes.refresh([], 0.0)
    lanes.suppose_due(1.0)
    assert len(lanes.share(1000, 1.0)) == MAX_SUPPOSED
