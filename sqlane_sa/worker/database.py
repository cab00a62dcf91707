"""The worker's own connections: made like the application's, not taken from its pool, with an end to each wait."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import close
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool, Pool

from sqlane_sa import store
from sqlane_sa.worker.deadlines import Deadlines, own_number
from sqlane_sa.worker.driver import (
    Session,
    connect_options,
    is_pooled,
    keep_alive,
    prepare_at_once,
    session_of,
    stop_preparing,
)
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

SESSION = "sqlane_session"
DIRECT = "sqlane_direct"
"""Notes on a connection: which session of the server it is, and whether that session is surely its own."""
MAX_LEFT = 100


class NotConnectedError(ConnectionError):
    """A creator or a listener of the application's failed, with an error of any kind: it says nothing about the rows
    that the connection was for."""


class Connector:
    """Opens connections as the application's engine does: same creator, same listeners. Those that are opened within
    one of `deadlines`' limits get keepalives and an end to the wait for the connection, and are watched from then on.
    """

    def __init__(self, engine: Engine, deadlines: Deadlines, *, quiet: bool = False) -> None:
        self._engine = engine
        self._create = engine.pool._invoke_creator
        self._deadlines = deadlines
        self._quiet = quiet
        self._left: deque[Session] = deque(maxlen=MAX_LEFT)
        # The application's own connections pass by: nobody limits the calls of its threads.
        with _listeners_copied(engine):
            event.listen(engine, "do_connect", self._connect)

    def engine(self, isolation_level: str = "READ COMMITTED") -> Engine:
        """An engine whose connections are opened here, outside the application's pool.

        READ COMMITTED, whatever the application chose: SKIP LOCKED fails under a snapshot that has grown old. An engine
        for each level: one derived from another by execution_options keeps the other's level too.
        """
        theirs = self._engine
        pool = self.followed(NullPool(self, dialect=theirs.dialect, _dispatch=theirs.pool.dispatch))
        own = Engine(pool, theirs.dialect, theirs.url, hide_parameters=True)
        return own.execution_options(isolation_level=isolation_level)

    def database(self) -> Database:
        """A connection for one thread."""
        return Database(self, self._deadlines)

    def followed(self, pool: Pool) -> Pool:
        """A pool of connections made here: the sessions of those that are lost in the middle of a call are noted, and
        each begins outside a transaction."""
        event.listen(pool, "invalidate", self._lost)
        event.listen(pool, last_moment(pool), _settle)  # after the application's listeners
        return pool

    def end_left(self, conn: Connection) -> None:
        """End the sessions of lost connections that are still there. A server that was not told waits on in them: with
        their locks, for a network that is silent or a standby that is gone; and with each new try in one more."""
        while self._left:
            left = self._left[0]
            with conn.begin():
                if store.end_session(conn, pid=left.pid, port=left.port, age=time.monotonic() - left.began):
                    log.warning("the session of a lost connection (process %d) was still there; it is ended", left.pid)
            with suppress(IndexError):  # another thread was here first
                self._left.popleft()

    def _lost(self, connection: Any, record: Any, error: BaseException | None) -> None:
        session = record.info.get(SESSION)
        if error is not None and session is not None:
            self._left.append(session)

    def close(self) -> None:
        """Leave the application's engine as it was."""
        with _listeners_copied(self._engine):
            event.remove(self._engine, "do_connect", self._connect)

    def __call__(self, connection_record: Any = None) -> Any:
        """A connection of the driver: what a pool calls its creator."""
        connection = self._create(connection_record)
        if self._deadlines.here is not None:
            self._deadlines.here.watch(connection)
        pooled = is_pooled(connection)
        if connection_record is not None:
            connection_record.info[SESSION] = session_of(connection)
            connection_record.info[DIRECT] = pooled is False
        if pooled:
            stop_preparing(connection)
            self._warn()
        elif pooled is False:
            keep_alive(connection)
        return connection

    def _warn(self) -> None:
        if not self._quiet:
            self._quiet = True
            log.warning(
                "a pooler stands before the database; this worker prepares no statements there. Unless it lends whole "
                'sessions, give create_engine connect_args={"prepare_threshold": None}'
            )

    def _connect(self, dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> Any:
        if self._deadlines.here is None:
            return None
        ours = connect_options(dialect.driver, options, self._deadlines.seconds)
        return dialect.connect(*arguments, **options, **ours)


def last_moment(pool: Pool) -> str:
    """The event after which nobody has touched a connection before its use: each checkout, where the application
    listens to those."""
    return "checkout" if pool.dispatch.checkout else "connect"


def _settle(connection: Any, record: Any, proxy: Any = None) -> None:
    """A listener of the application's, that sets or asks something on each connection, may have begun a transaction:
    in one, no isolation level can be set."""
    connection.commit()


_listening = threading.Lock()


@contextmanager
def _listeners_copied(engine: Engine) -> Iterator[None]:
    """Change the listeners of `engine` within: in a copy of their list, for a thread of the application may be on its
    way through it. One of its listeners fetches a password, and the next step would fail: "deque mutated"."""
    with _listening:
        known: Any = engine.dialect.dispatch.do_connect
        if isinstance(known.listeners, deque):
            known.listeners = known.listeners.copy()
        yield


class Database:
    """One connection for one thread, opened when it is first needed and again after each error.

    All of what is done with it is within one deadline. After any error the connection is dropped: it may be read-only,
    on a server that is no longer the primary, or half dead, and a new one costs milliseconds.
    """

    def __init__(self, connector: Connector, deadlines: Deadlines) -> None:
        self._connector = connector
        self._engine = connector.engine()
        self._deadlines = deadlines
        self._conn: Connection | None = None
        self._level = ""
        # To make a number for each call would let go of the interpreter twice, and wait to get it back.
        self._number: int | None = None
        self.committed = 0
        """Transactions, since the beginning."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction with pinned plans."""
        with self._used() as conn:
            self._set_level(conn, "READ COMMITTED")
            with conn.begin():
                if not self._direct(conn):
                    store.pin_plans(conn, idle_limit=self._deadlines.idle_limit)
                yield conn

    @contextmanager
    def statement(self) -> Iterator[Connection]:
        """For one statement, with pinned plans: on a session of our own without a transaction around it, which saves
        two round trips."""
        with self._used() as conn:
            if self._direct(conn):
                self._set_level(conn, "AUTOCOMMIT")
                yield conn
                conn.commit()  # nothing to the server, and the end of what SQLAlchemy takes for a transaction
            else:
                with conn.begin():
                    store.pin_plans(conn, idle_limit=self._deadlines.idle_limit)
                    yield conn

    @contextmanager
    def _used(self) -> Iterator[Connection]:
        try:
            with self._deadlines.limit() as call:
                conn = self._conn or self._open()
                if self._number is not None:
                    call.borrow(self._number)
                yield conn
            self.committed += 1
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _direct(conn: Connection) -> bool:
        return bool(conn.info.get(DIRECT))

    def _set_level(self, conn: Connection, level: str) -> None:
        if level != self._level:
            conn.execution_options(isolation_level=level)
            self._level = level

    def _open(self) -> Connection:
        try:
            self._conn = conn = self._engine.connect()
        except OperationalError:
            raise
        except Exception as error:
            raise NotConnectedError(first_line(error)) from error
        self._level = "READ COMMITTED"
        self._number = own_number(conn.connection.driver_connection)
        self._connector.end_left(conn)
        if self._direct(conn):
            prepare_at_once(conn.connection.driver_connection)
            with conn.begin():
                store.pin_session(conn, idle_limit=self._deadlines.idle_limit)
        return conn

    def let_go(self) -> None:
        """Close a connection that is not needed for a while: a server has few. The next use opens one."""
        conn = self._taken()
        if conn is not None:
            conn.close()

    def close(self) -> None:
        """Close the connection, also a broken one."""
        conn = self._taken()
        if conn is not None:
            try:
                conn.invalidate()
            finally:
                conn.close()

    def _taken(self) -> Connection | None:
        conn, self._conn = self._conn, None
        number, self._number = self._number, None
        if number is not None:
            close(number)
        return conn
