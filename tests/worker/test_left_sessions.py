"""Sessions whose connection was lost: a server that was not told waits on in them, with their locks."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.worker.database import Connector, Database
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.driver import Session
from sqlane_sa.worker.handler_engine import HandlerEngine
from sqlane_sa.worker.transactions import read_committed
from tests.support import wait_until

Sql = Callable[..., list[Any]]


@pytest.fixture
def connector(engine: sa.Engine) -> Iterator[Connector]:
    connector = Connector(engine, UNLIMITED)
    yield connector
    connector.close()


def lose(conn: sa.Connection) -> int:
    """The connection breaks on this side, and its server process is stopped before it could notice; its id."""
    pid = int(conn.scalar(sa.text("SELECT pg_backend_pid()")) or 0)
    os.kill(pid, signal.SIGSTOP)
    with socket.socket(fileno=os.dup(conn.connection.driver_connection.fileno())) as own:  # type: ignore[union-attr]
        own.shutdown(socket.SHUT_RDWR)
    return pid


def is_there(sql: Sql, pid: int) -> bool:
    return bool(sql("SELECT FROM pg_stat_activity WHERE pid = :pid", pid=pid))


def test_a_session_that_was_left_behind_is_ended_by_the_next_connection(
    connector: Connector, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """With the locks that it holds; a worker's other threads end it too."""
    sql("CREATE TABLE rows (n int PRIMARY KEY)")
    database, other = connector.database(), connector.database()
    pid = 0
    with pytest.raises(sa.exc.OperationalError), database.transaction() as conn:
        conn.execute(sa.text("INSERT INTO rows VALUES (1)"))
        pid = lose(conn)
        conn.execute(sa.text("SELECT 1"))
    with other.transaction():
        assert f"process {pid}" in caplog.text
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not is_there(sql, pid))
    with database.transaction() as conn:
        conn.execute(sa.text("INSERT INTO rows VALUES (1)"))
    database.close()
    other.close()


def test_that_of_a_transactional_handler_too(engine: sa.Engine, connector: Connector, sql: Sql) -> None:
    handlers = HandlerEngine(engine, connector, concurrency=1)
    pid = 0
    with pytest.raises(sa.exc.OperationalError), read_committed(handlers, UNLIMITED) as conn:
        pid = lose(conn)
        conn.execute(sa.text("SELECT 1"))
    database = connector.database()
    with database.transaction():
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not is_there(sql, pid))
    database.close()
    handlers.dispose()


def test_a_session_that_is_gone_is_no_news(connector: Connector, sql: Sql, caplog: pytest.LogCaptureFixture) -> None:
    database = connector.database()
    with pytest.raises(sa.exc.OperationalError), database.transaction() as conn:
        pid = conn.scalar(sa.text("SELECT pg_backend_pid()"))
        sql("SELECT pg_terminate_backend(:pid)", pid=pid)
        wait_until(lambda: not is_there(sql, pid))
        conn.execute(sa.text("SELECT 1"))
    with caplog.at_level(logging.DEBUG), database.transaction():
        assert "was still there" not in caplog.text
    database.close()


def test_nobody_elses_session_is_ended(engine: sa.Engine) -> None:
    """The process id may be another session's by now: the port at the client's end tells, and when it began."""
    with engine.connect() as one, engine.connect() as two:
        pid, port = two.execute(
            sa.text("SELECT pid, client_port FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        ).one()
        assert not store.end_session(one, pid=pid, port=port + 1, age=0)
        assert not store.end_session(one, pid=pid, port=port, age=600), "it began later"
        assert not store.end_session(two, pid=pid, port=port, age=0), "not itself"
        assert two.scalar(sa.text("SELECT 1")) == 1
        assert store.end_session(one, pid=pid, port=port, age=0)
        with pytest.raises(sa.exc.OperationalError):
            two.execute(sa.text("SELECT 1"))


def test_a_connection_that_is_closed_leaves_none(connector: Connector) -> None:
    database = connector.database()
    with database.transaction() as conn:
        conn.execute(sa.text("SELECT 1"))
    database.close()
    assert not connector._left


def test_nor_is_one_in_another_database(engine: sa.Engine) -> None:
    elsewhere = sa.create_engine(engine.url.set(database="postgres"), poolclass=sa.NullPool)
    with engine.connect() as one, elsewhere.connect() as two:
        pid, port = two.execute(
            sa.text("SELECT pid, client_port FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        ).one()
        assert not store.end_session(one, pid=pid, port=port, age=0)
        assert two.scalar(sa.text("SELECT 1")) == 1


def test_databases_share_what_was_left(connector: Connector) -> None:
    assert isinstance(connector.database(), Database)
    connector._left.append(Session(0, 0, 0.0))
    database = connector.database()
    with database.transaction():
        assert not connector._left
    database.close()
