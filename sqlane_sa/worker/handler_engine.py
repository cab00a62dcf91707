"""The engine that transactional handlers run in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, Pool, QueuePool

from sqlane_sa import store
from sqlane_sa.schema import Tables
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.store.last_step import complete_and_commit
from sqlane_sa.store.together import NOT_PREPARED, PREPARED, sends_together
from sqlane_sa.values.errors import SqlaneError
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker.database import Connector, last_moment
from sqlane_sa.worker.driver import has_arrived
from sqlane_sa.worker.service import first_line

USED = "sqlane_used"
TRUSTED = 1.0
"""Seconds for which a connection that was in use is not tried before the next."""

DEALLOCATING = ("ROLLBACK", "DROP", "ALTER", "DISCARD", "DEALLOCATE")
"""What the server calls statements after which psycopg may deallocate all that is prepared in the session, as that of a
savepoint's rollback; and those that do so themselves."""


class StatementsLostError(SqlaneError):
    """Somebody has deallocated the prepared statements of a session: its transaction is rolled back."""


class HandlerEngine(OptionEngine):
    """The application's engine, events and options included, with a pool as large as the worker's concurrency, and its
    connections at READ COMMITTED.

    What transactional handlers run in: from the application's pool, which need not be as large, they would be refused
    a connection after its timeout, or open and close one for each job. A NullPool stays one: something else pools.
    """

    pool: Pool = None  # type: ignore[assignment]  # in place of the property that finds the application's

    def __init__(self, engine: Engine, connector: Connector, concurrency: int) -> None:
        super().__init__(engine, {})
        self.pool = _like(engine.pool, connector, concurrency)
        self._together = isinstance(self.pool, HandlerPool)
        self._on_commit: dict[Connection, Callable[[Connection], None]] = {}
        # Once, and not for each job on its connection: SQLAlchemy builds classes of listeners then.
        event.listen(self, "commit", self._commits)
        event.listen(self, "rollback", _forget_prepared)
        event.listen(self, "after_cursor_execute", _after_statement)

    @contextmanager
    def on_commit(self, conn: Connection, function: Callable[[Connection], None]) -> Iterator[None]:
        """Within, a commit of `conn` calls the function first."""
        self._on_commit[conn] = function
        try:
            yield
        finally:
            del self._on_commit[conn]

    def complete_and_commit(self, conn: Connection, tables: Tables, job: ClaimedJob, idle_limit: float | None) -> bool:
        """Complete the job in the transaction of `conn`, and commit where that is one step with it. False: the job does
        not run under its lock any more, and nothing may be committed.

        Raises `StatementsLostError` when what was prepared in the session is gone.
        """
        # Where the handler has rolled back, the next statement is refused, and a commit would do nothing.
        if not (self._together and conn.in_transaction() and sends_together(conn)):
            return bool(store.complete(conn, tables, jobs=[job], idle_limit=idle_limit))

        try:
            return complete_and_commit(conn, tables, job=job, idle_limit=idle_limit)
        except DBAPIError as error:
            if sqlstate(error) in NOT_PREPARED:
                self._together = False  # a listener of the application's takes them away, and would do so again
                raise StatementsLostError(first_line(error)) from error
            raise

    def _commits(self, conn: Connection) -> None:
        function = self._on_commit.get(conn)
        if function is not None:
            function(conn)


def _forget_prepared(conn: Connection) -> None:
    if not conn.invalidated:
        conn.connection.info.pop(PREPARED, None)


def _after_statement(conn: Connection, cursor: Any, *_: Any) -> None:
    if (getattr(cursor, "statusmessage", None) or "").startswith(DEALLOCATING):
        _forget_prepared(conn)


class HandlerPool(QueuePool):
    """Tries a connection before it is used, for one that broke while it was idle must not cost a job an attempt; but
    not one that was in use just now and has nothing to say. What the server sends last, and the end of a connection
    that it closes, can be seen without asking it."""

    _sqla_logger_namespace = "sqlalchemy.pool.impl.QueuePool"
    """It says what any pool does, and who wants to hear that asks SQLAlchemy: our log is of jobs."""

    def _do_get(self) -> ConnectionPoolEntry:
        record: Any = super()._do_get()
        used = record.info.get(USED)
        if used is not None and record.dbapi_connection is not None and time.monotonic() - used < TRUSTED:
            record.fresh = not has_arrived(record.dbapi_connection)
        return record  # type: ignore[no-any-return]

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        record.info[USED] = time.monotonic()
        super()._do_return_conn(record)


def _like(old: Pool, connector: Connector, size: int) -> Pool:
    pool: Pool
    if isinstance(old, QueuePool):
        pool = HandlerPool(
            connector,
            pool_size=size,
            max_overflow=-1,
            recycle=old._recycle,
            pre_ping=True,
            use_lifo=True,
            reset_on_return=old._reset_on_return,
            dialect=old._dialect,
            _dispatch=old.dispatch,
        )
    else:
        pool = NullPool(connector, dialect=old._dialect, _dispatch=old.dispatch)
    moment = last_moment(pool)
    connector.followed(pool)
    event.listen(pool, moment, _pin_isolation(old))  # when it has ended what the listeners may have begun
    return pool


def _pin_isolation(pool: Pool) -> Callable[..., None]:
    dialect: Any = pool._dialect

    def pin(connection: Any, record: Any, proxy: Any = None) -> None:
        dialect.set_isolation_level(connection, "READ COMMITTED")

    return pin
