"""The loop waits on the listener's socket, and reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue
from sqlane_sa.worker.ear import PING, Ear
from tests.support import wait_until

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]


class Lent:
    """An ear on a connection that listens to "c", and what it was told."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.changes: list[None] = []
        self.losses: list[Exception] = []
        self.ear = Ear(lambda: self.changes.append(None))
        connection.execute("LISTEN c")
        self.ear.lend(connection, self.losses.append)


@pytest.fixture
def lent(engine: sa.Engine) -> Iterator[Lent]:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        yield Lent(connection)


def test_wake_ups_are_counted_and_pings_are_not(lent: Lent, sql: Sql) -> None:
    assert lent.ear.hear() == 0
    sql(f"SELECT pg_notify('c', ''), pg_notify('c', 'x'), pg_notify('c', '{PING}1')")
    assert wait_until(lent.ear.hear) == 2
    assert lent.ear.hear() == 0


def test_nothing_is_heard_while_it_is_taken_back(lent: Lent, sql: Sql) -> None:
    changes = len(lent.changes)
    with lent.ear.taken_back():
        assert lent.ear.file is None
        assert len(lent.changes) == changes + 1, "the one who waits waits on nothing any more"
        sql("NOTIFY c")
        assert lent.ear.hear() == 0
    assert lent.ear.file == lent.connection.fileno()
    assert len(lent.changes) == changes + 2
    assert wait_until(lent.ear.hear) == 1


def test_an_error_while_it_is_taken_back_is_for_good(lent: Lent) -> None:
    with pytest.raises(ZeroDivisionError), lent.ear.taken_back():
        raise ZeroDivisionError
    assert lent.ear.file is None
    assert lent.ear.hear() == 0


def test_a_lost_connection_is_told_once(lent: Lent, sql: Sql) -> None:
    sql("SELECT pg_terminate_backend(:pid)", pid=lent.connection.info.backend_pid)
    wait_until(lambda: lent.ear.hear() or lent.losses)
    assert lent.ear.file is None
    assert lent.ear.hear() == 0
    assert len(lent.losses) == 1


def test_a_lender_at_work_is_not_waited_for(lent: Lent, sql: Sql) -> None:
    sql("NOTIFY c")
    with lent.ear._lock:
        assert lent.ear.hear() == 0
    assert wait_until(lent.ear.hear) == 1


def test_no_thread_stands_between_the_socket_and_the_loop(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql
) -> None:
    queue.job("quick")(lambda payload: None)
    worker = work(poll_interval=3600, sweep_interval=3600)
    wait_until(lambda: worker._parts.loop.asleep and worker._parts.loop.ear.file)
    wait_until(worker._parts.loop.idle.is_set)
    threads: list[str] = []
    hear = worker._parts.loop.ear.hear

    def heard() -> int:
        if count := int(hear()):
            threads.append(threading.current_thread().name)
        return count

    worker._parts.loop.ear.hear = heard
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")
    assert threads == ["sqlane-loop"]
