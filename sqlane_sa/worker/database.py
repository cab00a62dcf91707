"""The worker's own connections: made like the application's, and never taken from its pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.pool import NullPool, Pool, QueuePool

from sqlane_sa import store


def own_engine(engine: Engine, isolation_level: str = "READ COMMITTED") -> Engine:
    """An engine that opens connections as the application's does (same creator, same listeners), outside its pool.

    READ COMMITTED, whatever the application chose: SKIP LOCKED fails under a snapshot that has grown old. Called once
    for each level: an engine derived from another by execution_options keeps the other's level too.
    """
    pool = NullPool(engine.pool._creator, dialect=engine.dialect, _dispatch=engine.pool.dispatch)
    own = Engine(pool, engine.dialect, engine.url, hide_parameters=True)
    return own.execution_options(isolation_level=isolation_level)


class HandlerEngine(OptionEngine):
    """The application's engine, events and options included, with a pool as large as the worker's concurrency.

    What transactional handlers run in: from the application's pool, which need not be as large, they would be refused
    a connection after its timeout, or open and close one for each job. A connection is tried before it is used, for one
    that broke while it was idle must not cost a job an attempt. A NullPool stays one: something else pools.
    """

    pool: Pool = None  # type: ignore[assignment]  # in place of the property that finds the application's

    def __init__(self, engine: Engine, concurrency: int) -> None:
        super().__init__(engine, {})
        self.pool = _like(engine.pool, concurrency)


def _like(old: Pool, size: int) -> Pool:
    if not isinstance(old, QueuePool):
        return NullPool(old._creator, dialect=old._dialect, _dispatch=old.dispatch)
    return QueuePool(
        old._creator,
        pool_size=size,
        max_overflow=-1,
        recycle=old._recycle,
        pre_ping=True,
        reset_on_return=old._reset_on_return,
        dialect=old._dialect,
        _dispatch=old.dispatch,
    )


class Database:
    """One connection for one thread, opened when it is first needed and again after each error."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._conn: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction with pinned plans. After any error in it the connection is dropped: it may be read-only, on a
        server that is no longer the primary, or half dead, and a new one costs milliseconds."""
        try:
            if self._conn is None:
                self._conn = self._engine.connect()
            with self._conn.begin():
                store.pin_plans(self._conn)
                yield self._conn
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, also a broken one."""
        conn, self._conn = self._conn, None
        if conn is not None:
            try:
                conn.invalidate()
            finally:
                conn.close()
