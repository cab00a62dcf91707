"""The listener trusts a connection only while notifications arrive on it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue
from sqlane_sa.worker import listener
from sqlane_sa.worker.hints import FIRST_PAUSE, LAST_PAUSE, Hints
from tests.support import long_run, wait_until

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]

ASLEEP = "SELECT count(*) FROM sqlane_sleepers"


@contextmanager
def after(statement: str, then: str, times: int, skip: int = 0) -> Iterator[list[str]]:
    """Run `then` on the same connection after the first statements that begin so, on whatever engine."""
    done: list[str] = []

    def follow(conn: Any, cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith(statement) and len(done) < skip + times:
            done.append(sql)
            if len(done) > skip:
                cursor.execute(then)

    sa.event.listen(sa.Engine, "after_cursor_execute", follow)
    try:
        yield done
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", follow)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_connection_on_which_nothing_arrives_is_found_at_the_start(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """B31: as behind a pooler in transaction mode. The worker polls, and asks nobody for wake-ups in vain."""
    queue.job("quick")(lambda payload: None)
    with after("LISTEN", "UNLISTEN *", times=100):
        worker = work()
        wait_until(lambda: warnings(caplog))
        id_ = enqueue("quick")
        wait_until(lambda: job(id_).status == "completed")
        wait_until(lambda: sql(ASLEEP) == [(0,)] and not worker._parts.loop.asleep)
    (warning,) = warnings(caplog)
    assert "no notification arrives" in warning and "pooler" in warning and "only polls" in warning


def test_a_deaf_worker_tries_again_and_says_when_it_hears(
    queue: Queue, work: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "DEAF_PAUSE", 0.05)
    queue.job("quick")(lambda payload: None)
    with after("LISTEN", "UNLISTEN *", times=2):
        work()
        wait_until(lambda: "listener: notifications arrive again" in warnings(caplog))
    assert len(warnings(caplog)) == 2
    wait_until(lambda: sql(ASLEEP) == [(1,)])


def test_a_session_that_listens_no_more_is_found_by_a_ping(
    queue: Queue, work: Any, enqueue: Any, job: Read, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After the connection's own test; the next ping misses itself, and the worker connects anew."""
    monkeypatch.setattr(listener, "PING_INTERVAL", 0.4)
    queue.job("quick")(lambda payload: None)
    with after("SELECT pg_notify", "UNLISTEN *", times=1, skip=2):
        work(poll_interval=3600)
        wait_until(lambda: any("did not arrive" in warning for warning in warnings(caplog)))
    wait_until(lambda: any("works again" in warning for warning in warnings(caplog)))
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")


TRANSACTION = "SELECT xact_start FROM pg_stat_activity WHERE pid = :pid"
QUEUE_USED = "SELECT pg_notification_queue_usage()"


def transaction(conn: sa.Connection, pid: int) -> Any:
    """When the transaction of a session that is there began, or None."""
    return conn.execute(sa.text(TRANSACTION), {"pid": pid}).scalar_one()


@pytest.mark.parametrize("pause", [0.0, pytest.param(0.6, marks=long_run(timeout=1200))])
def test_the_listener_holds_up_no_notifications(queue: Queue, work: Any, engine: sa.Engine, pause: float) -> None:
    """C46: its session stays in no transaction while the worker idles and 1,000 notifications arrive, between its pings
    too where that takes long: the server could not empty its queue of them, and one day no enqueue could commit."""
    queue.job("quick")(lambda payload: None)
    worker = work(poll_interval=3600)
    connection = wait_until(lambda: worker._parts.loop.ear._connection)
    pid, waiting = connection.info.backend_pid, threading.Event()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for _ in range(1000):
            conn.execute(sa.text("SELECT pg_notify(:channel, '')"), {"channel": queue.tables.channel})
            waiting.wait(pause)
            # A ping has one of its own, and so has the server for the moment in which it delivers a notification.
            if (began := transaction(conn, pid)) is not None:
                wait_until(lambda: transaction(conn, pid) != began, message="the end of a transaction")
        wait_until(lambda: conn.scalar(sa.text(QUEUE_USED)) == 0)
    print(f"\nreliability: idle listener | 1,000 notifications, {pause:g} s apart | no transaction lasted, queue empty")


def test_pings_wake_nobody(queue: Queue, work: Any, sql: Sql, engine: sa.Engine) -> None:
    queue.job("quick")(lambda payload: None)
    worker = work(poll_interval=3600)
    wait_until(worker._parts.loop.idle.is_set)
    woken = noted_of(worker)
    channel = queue.tables.channel
    sql("SELECT pg_notify(:channel, 'ping:x')", channel=channel)
    sql("SELECT pg_notify(:channel, '')", channel=channel)
    wait_until(lambda: woken)
    assert len(woken) == 1


def noted_of(worker: Any) -> list[int]:
    """The wake-ups that the worker's loop hears from now on: how many at a time."""
    noted: list[int] = []
    ear = worker._parts.loop.ear
    wait_until(lambda: ear.file is not None, message="an ear")  # before it, the listener hears, and while it is tested
    hear = ear.hear

    def heard() -> int:
        count = int(hear())
        if count:
            noted.append(count)
        return count

    ear.hear = heard
    return noted


@pytest.mark.slow
def test_forged_notifications_cost_a_bounded_number_of_looks(
    queue: Queue, engine: sa.Engine, work: Any, enqueue: Any, job: Read
) -> None:
    """Ten thousand, in transactions of ten: a look for each would be a thousand."""
    queue.job("quick")(lambda payload: None)
    worker = work(poll_interval=3600)
    wait_until(worker._parts.loop.idle.is_set)
    looks: list[None] = []
    heard = noted_of(worker)
    turn = worker._parts.loop._probe
    worker._parts.loop._probe = lambda conn: (looks.append(None), turn(conn))
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as conn:
        for _ in range(1000):
            conn.execute(
                sa.text("SELECT pg_notify(:channel, 'forged' || n) FROM generate_series(1, 10) AS n"),
                {"channel": queue.tables.channel},
            ).close()
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")
    assert sum(heard) > 30 * len(looks) > 0


def test_hints_are_followed_at_once_while_they_lead_to_jobs() -> None:
    hints = Hints()
    for now in range(100):
        assert hints.note() and hints.take(now)
        hints.followed(now, found=True)
        assert not hints.take(now)
        assert hints.next_look(now) == math.inf


def test_hints_that_lead_to_nothing_wait_twice_as_long_each_time() -> None:
    hints = Hints()
    now, looks = 0.0, []
    while now < 10:
        hints.note()
        if hints.take(now):
            looks.append(now)
            hints.followed(now, found=False)
            assert hints.next_look(now) > now
        now += 0.0005
    assert len(looks) < 10 / LAST_PAUSE + 10
    assert looks[1] - looks[0] < FIRST_PAUSE + 0.001
    hints.followed(now, found=True)
    assert hints.note() and hints.take(now)


def test_a_hint_that_came_during_the_pause_is_followed_at_its_end() -> None:
    """Also where the loop looks at the clock only after it."""
    hints = Hints()
    far = time.monotonic() + 1000
    hints.followed(far, found=False)
    assert not hints.note(), "nobody is woken for it"
    assert far < hints.next_look(far) == hints.next_look(far + 5) < far + 5
    assert hints.take(far + 5)


def test_a_hint_during_a_pause_wakes_the_worker_after_it(queue: Queue, work: Any, enqueue: Any, job: Read) -> None:
    """It would otherwise sleep until its next poll, an hour later."""
    queue.job("quick")(lambda payload: None)
    loop = work(poll_interval=3600)._parts.loop
    wait_until(loop.idle.is_set)
    wait_until(lambda: loop.asleep)
    loop._hints.closed_until = time.monotonic() + 0.3
    loop._jobs.wake.set()  # it looks at the clock anew
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")


def test_a_wake_up_for_nothing_begins_a_pause(queue: Queue, work: Any, sql: Sql) -> None:
    queue.job("quick")(lambda payload: None)
    loop = work(poll_interval=3600)._parts.loop
    wait_until(loop.idle.is_set)
    sql("SELECT pg_notify(:channel, '')", channel=queue.tables.channel)
    wait_until(lambda: loop._hints.closed_until > 0)


def test_a_wake_up_beside_a_ping_is_heard(queue: Queue, work: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arrive in one read, which is the listener's: it has its connection back for the time of a ping."""
    monkeypatch.setattr(listener, "PING_INTERVAL", 0.4)
    queue.job("quick")(lambda payload: None)
    worker = work(poll_interval=3600)
    wait_until(worker._parts.loop.idle.is_set)
    woken: list[None] = []
    worker._parts.listener._wake = lambda: woken.append(None)
    hint = f"SELECT pg_notify('{queue.tables.channel}', '')"
    with before("SELECT pg_notify", hint) as done:
        wait_until(lambda: done)
        wait_until(lambda: woken)


@contextmanager
def before(statement: str, first: str) -> Iterator[list[str]]:
    """Run `first` on the same connection before the next statement that begins so."""
    done: list[str] = []

    def precede(conn: Any, cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith(statement) and sql != first and not done:
            done.append(sql)
            cursor.execute(first)

    sa.event.listen(sa.Engine, "before_cursor_execute", precede)
    try:
        yield done
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", precede)
