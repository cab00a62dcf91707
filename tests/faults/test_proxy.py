"""The proxy of the fault tests: it reads every message, and fails at the one it is told and at no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from tests.faults.messages import Conversation
from tests.faults.proxy import CUT_AFTER, CUT_BEFORE, HALF_OPEN, SWALLOW_REPLIES, Fault, Link, Proxy
from tests.support import wait_until


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


def connect(proxy: Proxy) -> psycopg.Connection:
    url = sa.make_url(proxy.url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True)


def link_of(proxy: Proxy, conn: psycopg.Connection) -> Link:
    return next(link for link in proxy.links if link.backend_pid == conn.info.backend_pid)


@contextlib.contextmanager
def asked(conn: psycopg.Connection, sql: str) -> Iterator[list[BaseException]]:
    """Send a statement in a thread of its own; within the block it may wait for its reply. What it raised."""
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            conn.execute(sql)
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    yield errors
    thread.join(60)
    assert not thread.is_alive()


def test_messages_in_pieces() -> None:
    talk = Conversation()
    query = b"Q\0\0\0\x0dSELECT 1\0"
    assert [one.name for one in talk.feed("client", b"\0\0\0\x08\x04\xd2\x16\x2f")] == ["SSLRequest"]
    assert [one.name for one in talk.feed("server", b"N")] == ["Refusal"]
    assert list(talk.feed("client", b"\0\0\0\x09\0\x03\0")) == []
    assert [one.name for one in talk.feed("client", b"\0\0" + query[:3])] == ["Startup"]
    found = [one for byte in query[3:] for one in talk.feed("client", bytes([byte]))]
    assert [(one.name, one.data, one.statement) for one in found] == [("Query", query, "SELECT 1")]
    found = list(talk.feed("server", b"Z\0\0\0\x05IZ\0\0\0\x05T"))
    assert [(one.name, one.body) for one in found] == [("ReadyForQuery", b"I"), ("ReadyForQuery", b"T")]


def test_an_encrypted_session_is_refused() -> None:
    talk = Conversation()
    list(talk.feed("client", b"\0\0\0\x08\x04\xd2\x16\x2f"))
    with pytest.raises(ValueError, match="encryption"):
        list(talk.feed("server", b"S"))


def test_everything_passes(proxy: Proxy) -> None:
    with connect(proxy) as conn:
        link = link_of(proxy, conn)
        names = [name for _, name in link.messages]
        assert {"Startup", "Authentication", "BackendKeyData", "ReadyForQuery"} <= set(names)
        link.count()
        assert conn.execute("SELECT repeat('x', 5000000)").fetchone() == ("x" * 5_000_000,)
        assert list(link.messages) == [
            ("client", "Query"),
            *(("server", name) for name in ("RowDescription", "DataRow", "CommandComplete", "ReadyForQuery")),
        ]
        assert link.has_sent("repeat") and not link.has_sent("LISTEN")
        with conn.cursor() as cursor, cursor.copy("COPY (SELECT generate_series(1, 1000)) TO STDOUT") as copy:
            assert len(list(copy.rows())) == 1000
    wait_until(lambda: not proxy.links, message="the end of the link")


def test_a_cancellation_passes(proxy: Proxy) -> None:
    """On a connection of its own, whose only message has no type."""
    with connect(proxy) as conn:
        with asked(conn, "SELECT pg_sleep(60)") as errors:
            proxy.find("pg_sleep")
            # Not `cancel`, which would keep the proxy's thread from running while it waits.
            conn.cancel_safe()
        assert isinstance(errors[0], psycopg.errors.QueryCanceled)
        assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(
    ("sender", "n", "act", "written"),
    [
        ("client", 1, CUT_BEFORE, 0),
        ("client", 2, CUT_BEFORE, 1),
        ("server", 1, CUT_BEFORE, 1),
        ("server", 2, CUT_BEFORE, 1),
        ("server", 2, CUT_AFTER, 1),
    ],
)
def test_cuts(proxy: Proxy, engine: sa.Engine, sender: str, n: int, act: object, written: int, reset: bool) -> None:
    """The first message of the client writes, the second asks; the server answers each with two messages or more."""
    with engine.begin() as direct:
        direct.exec_driver_sql("CREATE TABLE written (n int)")
    conn = connect(proxy)
    link = link_of(proxy, conn)
    link.arm(Fault(sender, n, act, reset))  # type: ignore[arg-type]
    with pytest.raises(psycopg.OperationalError):
        conn.execute("INSERT INTO written VALUES (1)")
        conn.execute("SELECT 1")
    assert link.fired
    conn.close()
    wait_until(lambda: link.closed, message="the end of both ends")
    with engine.begin() as direct:
        gone = sa.text("SELECT count(*) FROM pg_stat_get_activity(:pid)")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as direct:
        wait_until(lambda: direct.scalar(gone, {"pid": link.backend_pid}) == 0, message="the end of the backend")
        assert direct.exec_driver_sql("SELECT count(*) FROM written").scalar_one() == written


@pytest.mark.parametrize(("act", "written"), [(HALF_OPEN, 0), (SWALLOW_REPLIES, 1)])
def test_silence(proxy: Proxy, engine: sa.Engine, act: object, written: int) -> None:
    """The second statement is not answered, and both sockets stay open; only without replies is it executed."""
    with engine.begin() as direct:
        direct.exec_driver_sql("CREATE TABLE written (n int)")
    conn = connect(proxy)
    link = link_of(proxy, conn)
    link.arm(Fault("client", 2, act))  # type: ignore[arg-type]
    conn.execute("SELECT 1")
    with asked(conn, "INSERT INTO written VALUES (1)") as errors:
        wait_until(lambda: link.fired)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as direct:
            count = sa.text("SELECT count(*) FROM written")
            wait_until(lambda: direct.scalar(count) == written, message="the row")
            assert direct.scalar(sa.text("SELECT count(*) FROM pg_stat_get_activity(:p)"), {"p": link.backend_pid}) == 1
        assert not errors and not link.closed
        link.cut()
    assert len(errors) == 1
    conn.close()


def test_all_at_once_and_new_ones(proxy: Proxy) -> None:
    first, second = connect(proxy), connect(proxy)
    proxy.cut()
    for conn in (first, second):
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    with connect(proxy) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_stopped_and_started_again(proxy: Proxy) -> None:
    before = connect(proxy)
    port = proxy.port
    proxy.stop()
    with pytest.raises(psycopg.OperationalError):
        before.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect(proxy)
    proxy.start()
    assert proxy.port == port
    with connect(proxy) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_a_black_hole_swallows_new_connections_too(proxy: Proxy) -> None:
    url = sa.make_url(proxy.url).set(drivername="postgresql").render_as_string(hide_password=False)
    proxy.black_hole()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        psycopg.connect(url, connect_timeout=2)
    proxy.heal()
    with connect(proxy) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_one_of_two_by_what_it_sent(proxy: Proxy) -> None:
    with connect(proxy) as listener, connect(proxy) as other:
        listener.execute("LISTEN ears")
        proxy.find("LISTEN").cut()
        with pytest.raises(psycopg.OperationalError):
            listener.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_the_next_connection(proxy: Proxy) -> None:
    proxy.arm_next(Fault("server", 3, CUT_BEFORE))
    with pytest.raises(psycopg.OperationalError):
        connect(proxy)
    with connect(proxy) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_late_messages_keep_their_order(proxy: Proxy) -> None:
    with connect(proxy) as conn:
        link_of(proxy, conn).delay(0.01)
        rows = conn.execute("SELECT generate_series(1, 500)").fetchall()
        assert rows == [(n,) for n in range(1, 501)]


def test_the_server_is_down(database_url: str) -> None:
    with Proxy(sa.make_url(database_url).set(port=1).render_as_string(hide_password=False)) as proxy:
        with pytest.raises(psycopg.OperationalError):
            connect(proxy)
