"""Deadlines: whatever happens to the database or the network, no part of a worker waits for ever."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import JobContext, Queue
from sqlane_sa.worker.database import Connector, Database
from sqlane_sa.worker.deadlines import LONGEST, SHORTEST, Call, Deadlines, deadline_for
from sqlane_sa.worker.transactions import read_committed
from tests.support import wait_until, with_driver

SLEEP = sa.text("SELECT pg_sleep(100)")
# The trigger runs at COMMIT.
SLOW_COMMIT = """
CREATE TABLE slow (n int);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(100); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION slow()"""


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    """Of 0.3 s, watched."""
    watched = Deadlines(0.3)
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            watched.run_once()

    thread = threading.Thread(target=watch)
    thread.start()
    yield watched
    ended.set()
    watched.stop()
    thread.join()


@pytest.fixture
def database(engine: sa.Engine, deadlines: Deadlines) -> Iterator[Database]:
    connector = Connector(engine, deadlines)
    database = connector.database()
    yield database
    database.close()
    connector.close()


def pid(database: Database) -> int:
    with database.transaction() as conn:
        return int(conn.scalar(sa.text("SELECT pg_backend_pid()")))


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_a_call_that_gets_no_answer_ends_and_the_next_has_a_new_session(
    database_url: str, deadlines: Deadlines, driver: str
) -> None:
    engine = sa.create_engine(with_driver(database_url, driver))
    database = Connector(engine, deadlines).database()
    before = pid(database)
    with pytest.raises(sa.exc.DBAPIError), database.transaction() as conn:
        conn.execute(SLEEP)
    assert pid(database) != before
    database.close()
    engine.dispose()


def test_a_commit_that_gets_no_answer_ends(database: Database, sql: Any) -> None:
    sql(SLOW_COMMIT)
    with pytest.raises(sa.exc.OperationalError), database.transaction() as conn:
        conn.execute(sa.text("INSERT INTO slow VALUES (1)"))


def test_a_server_that_accepts_and_says_nothing_is_given_up(deadlines: Deadlines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = sa.create_engine(f"postgresql+psycopg://x@127.0.0.1:{silent.getsockname()[1]}/x")
        with pytest.raises(sa.exc.OperationalError), Connector(engine, deadlines).database().transaction():
            pass


def test_a_handlers_queries_take_as_long_as_they_take_and_its_commit_does_not(
    engine: sa.Engine, deadlines: Deadlines, sql: Any
) -> None:
    sql(SLOW_COMMIT)
    with read_committed(engine, deadlines) as conn:
        conn.execute(sa.text("SELECT pg_sleep(0.9)"))  # three times the deadline
    with pytest.raises(sa.exc.OperationalError), read_committed(engine, deadlines) as conn:
        conn.execute(sa.text("INSERT INTO slow VALUES (1)"))


def test_a_rollback_ends_too(engine: sa.Engine, deadlines: Deadlines) -> None:
    """Its server process is stopped meanwhile, and answers nothing."""
    backend = 0
    try:
        with pytest.raises(sa.exc.OperationalError) as caught, read_committed(engine, deadlines) as conn:
            backend = conn.scalar(sa.text("SELECT pg_backend_pid()")) or 0
            os.kill(backend, signal.SIGSTOP)
            raise ZeroDivisionError
    finally:
        os.kill(backend, signal.SIGCONT)
    assert isinstance(caught.value.__context__, Exception)
    assert not deadlines._calls


@pytest.mark.parametrize(("unread", "late", "cut"), [(b"", 0.0, True), (b"x", 0.0, False), (b"", 10.0, False)])
def test_only_the_databases_silence_counts(unread: bytes, late: float, cut: bool) -> None:
    """Not that a reply waits here to be read, nor that this process was kept from looking: a claim that is cut for
    that would leave its jobs to their leases."""
    deadlines = Deadlines(5.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        call = Call(until=101.0)
        call.watch(ours)
        theirs.send(unread)
        deadlines._calls.add(call)
        deadlines._cut_overdue(101.1 + late, 101.1)
        call.close()
        ours.setblocking(False)
        # What has arrived can be read whether or not the socket is shut; only after it comes its end.
        assert not unread or ours.recv(1) == unread
        try:
            then = ours.recv(1)
        except BlockingIOError:
            then = None
        assert then == (b"" if cut else None)


def test_the_watch_looks_when_the_first_deadline_is_over() -> None:
    """And not a whole deadline after it began to wait: a call would take up to twice its time."""
    deadlines = Deadlines(60.0)
    ours, theirs = socket.socketpair()
    with ours, theirs, deadlines.limit() as call:
        call.watch(ours)
        call.until = time.monotonic() + 0.1
        deadlines.run_once()
        assert ours.recv(1) == b""


def test_deadlines_leave_a_renewal_time_to_be_tried_again() -> None:
    assert deadline_for(60) == 20
    assert (deadline_for(1), deadline_for(3600)) == (SHORTEST, LONGEST)


def parameters(conn: sa.Connection) -> dict[str, str]:
    return conn.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr, no-any-return]


def of_the_server(conn: sa.Connection) -> tuple[str, ...]:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    return tuple(conn.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names)


def test_a_workers_connections_have_keepalives_and_the_applications_keep_theirs(
    database_url: str, queue: Queue, work: Any, enqueue: Any
) -> None:
    engine = sa.create_engine(f"{database_url}?keepalives_interval=7", poolclass=sa.NullPool)
    seen: dict[str, dict[str, str]] = {}
    servers: list[Any] = []

    @queue.job("look", transactional=True)
    def look(payload: Any, ctx: JobContext) -> None:
        servers.append(of_the_server(ctx.connection))
        seen["handler"] = parameters(ctx.connection)
        with engine.connect() as conn:
            seen["application"] = parameters(conn)

    worker = work(engine=engine)
    enqueue("look")
    wait_until(lambda: len(seen) == 2)
    own = parameters(worker._parts.loop._database._conn)
    for found in (own, seen["handler"], parameters(worker._parts.listener._conn)):
        assert found["keepalives_idle"] == "10" and found["tcp_user_timeout"] == "5000"
        assert found["keepalives_interval"] == "7", "chosen by the application"
        assert found["connect_timeout"] == "5"
    assert "tcp_user_timeout" not in seen["application"]
    another = worker._parts._connector.database()  # those that are there have their threads
    with another.transaction() as conn:
        servers.append(of_the_server(conn))
    another.close()
    assert servers == [("10", "5", "3")] * 2
    assert engine.dialect.dispatch.do_connect
    worker.stop()
    assert not engine.dialect.dispatch.do_connect


def test_the_environments_connect_timeout_counts(
    database_url: str, deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "9")
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    database = Connector(engine, deadlines).database()
    with database.transaction() as conn:
        assert parameters(conn)["connect_timeout"] == "9"
    database.close()


def test_a_connection_of_the_applications_own_making(database_url: str, queue: Queue, run: Any, enqueue: Any) -> None:
    """`creator=`: it is watched, and what it connects with is the application's choice."""
    import psycopg

    made = []

    def create() -> psycopg.Connection:
        conn = psycopg.connect(sa.make_url(database_url).set(drivername="postgresql").render_as_string(False))
        made.append(conn)
        return conn

    ran = queue.job("quick")(lambda payload: None)
    enqueue("quick")
    engine = sa.create_engine("postgresql+psycopg://", creator=create)
    run(engine=engine)
    assert ran.__name__ and len(made) > 3
    engine.dispose()


def test_the_watch_sleeps_while_nothing_is_late(deadlines: Deadlines) -> None:
    with deadlines.limit() as call:
        assert call.until - time.monotonic() > 0 and deadlines.here is call
        with deadlines.limit() as inner:
            assert deadlines.here is inner
        assert deadlines.here is call
    assert deadlines.here is None and not deadlines._calls
