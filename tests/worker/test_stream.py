"""A worker to which wake-ups come in a stream signs off, looks by itself while jobs come, and falls asleep after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from sqlane_sa import Job, Queue
from sqlane_sa.worker import stream
from sqlane_sa.worker.stream import FIRST_PATIENCE, FIRST_PAUSE, LAST_PATIENCE, LAST_PAUSE, MANY, WINDOW, Stream
from tests.support import wait_until

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]

ASLEEP = "SELECT count(*) FROM sqlane_sleepers"
TAKES = 0.0005


def looks_until_the_end(of: Stream, now: float, found: Callable[[float], bool] = lambda now: False) -> list[float]:
    """When it looks, from a sign-off on until it waits for wake-ups again."""
    of.begin(now)
    looks = []
    while of.look_at < of.ends_at:
        now = of.look_at
        looks.append(now)
        of.looked(now, now + TAKES, found(now))
    of.end()
    return looks


def test_few_wake_ups_are_no_stream() -> None:
    waking = Stream()
    for n in range(1000):
        waking.heard(1, now := n * WINDOW / (MANY - 2))
        assert not waking.flows(now)
    assert waking.look_at == math.inf


def test_many_in_a_window_are() -> None:
    waking = Stream()
    waking.heard(MANY - 1, 5.0)
    assert not waking.flows(5.0)
    waking.heard(1, 5.0 + WINDOW)
    assert waking.flows(5.0 + WINDOW)
    assert not waking.flows(5.0 + 2 * WINDOW)


def test_looks_that_find_nothing_are_few() -> None:
    looks = looks_until_the_end(Stream(), 100.0)
    assert 3 < len(looks) < 15
    assert looks[0] == 100.0 + FIRST_PAUSE
    assert looks[-1] < 100.0 + FIRST_PATIENCE


def test_it_goes_on_while_jobs_come() -> None:
    looks = looks_until_the_end(Stream(), 100.0, found=lambda now: now < 110)
    assert 110 < looks[-1] < 110 + 2 * FIRST_PATIENCE
    gaps = [after - before for before, after in pairwise(looks) if after < 110]
    assert max(gaps) <= FIRST_PAUSE + TAKES


def test_slow_looks_come_at_longer_intervals() -> None:
    slow = Stream()
    slow.begin(0.0)
    slow.looked(1.0, 1.01, found=True)
    assert slow.look_at > 1.01 + 3 * 0.01
    slow.looked(2.0, 7.0, found=True)
    assert slow.look_at <= 7.0 + LAST_PAUSE


def test_wake_ups_for_nothing_cost_a_bounded_number_of_looks() -> None:
    """Also where each sign-off is followed by the next."""
    forged = Stream()
    now, looks, times = 0.0, 0, 0
    while now < 60:
        times += 1
        made = looks_until_the_end(forged, now)
        looks += len(made)
        now = made[-1] + 0.01
    assert times < 60 / LAST_PATIENCE + 10
    assert looks < 60 * 20


def test_a_find_makes_it_patient_no_longer_than_at_first() -> None:
    tried = Stream()
    for n in range(10):
        looks_until_the_end(tried, n * 10.0)
    looks_until_the_end(tried, 200.0, found=lambda now: now < 200.1)
    assert looks_until_the_end(tried, 300.0)[-1] < 300.0 + FIRST_PATIENCE


@pytest.fixture
def asleep(queue: Queue, work: Any) -> Any:
    """The loop of a worker that would poll once an hour, asleep and listening."""
    queue.job("quick")(lambda payload: None)
    loop = work(poll_interval=3600, sweep_interval=3600)._parts.loop
    wait_until(lambda: loop.asleep and loop.ear.file)
    return loop


FLOOD = f"SELECT pg_notify(:channel, CAST(n AS text)) FROM generate_series(1, {MANY}) AS n"


def test_a_worker_signs_off_and_looks_by_itself(
    asleep: Any, queue: Queue, enqueue: Any, job: Read, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody notifies then."""
    monkeypatch.setattr(stream, "FIRST_PATIENCE", 3600)
    asleep._sleep.stream._patience = 3600
    sql(FLOOD, channel=queue.tables.channel)
    wait_until(lambda: sql(ASLEEP) == [(0,)])
    for _ in range(3):
        id_ = enqueue("quick")
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
    wait_until(asleep.idle.is_set)
    assert sql(ASLEEP) == [(0,)]


def test_it_falls_asleep_when_nothing_comes_any_more(
    asleep: Any, queue: Queue, enqueue: Any, job: Read, sql: Sql
) -> None:
    begun: list[float] = []
    begin = asleep._sleep.stream.begin
    asleep._sleep.stream.begin = lambda now: (begun.append(now), begin(now))
    for times in (1, 2):
        sql(FLOOD, channel=queue.tables.channel)
        wait_until(lambda: len(begun) == times and asleep.asleep)  # noqa: B023
        assert sql(ASLEEP) == [(1,)]
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")


def test_a_stream_ends_where_wake_ups_do_not_arrive_any_more(asleep: Any, queue: Queue, sql: Sql) -> None:
    """The worker polls, and looks no more often than that."""
    asleep._sleep.stream._patience = 3600
    sql(FLOOD, channel=queue.tables.channel)
    wait_until(lambda: sql(ASLEEP) == [(0,)])
    asleep.rely_on_wakeups(False)
    assert asleep._sleep.look_at == asleep._sleep.refresh_at == math.inf
