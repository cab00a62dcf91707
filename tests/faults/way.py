"""A way to the database through the proxy, with an end to each wait: the transactions in which operations run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import isawaitable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import Deadlines
from sqlane_sa.worker.handler_engine import HandlerEngine
from sqlane_sa.worker.transactions import read_committed
from tests.faults.operations import Operation


class Way:
    """Those of the worker, of its handlers, and of a caller. One thread at a time."""

    def __init__(self, url: str, deadlines: Deadlines) -> None:
        self._own = sa.create_engine(url, pool_size=1)
        self._deadlines = deadlines
        with self._own.connect():
            """The dialect is ready before anything is cut."""
        self._connector = Connector(self._own, deadlines)
        self._database = self._connector.database()
        self._handlers = HandlerEngine(self._own, self._connector, 1)
        self._loop = asyncio.new_event_loop()
        self._async = create_async_engine(url, pool_size=1)

    def call(self, operation: Operation, work: Callable[[Any], Any]) -> Any:
        """Call it with a connection in a transaction of the operation's kind."""
        if operation.by == "async caller":
            return self._loop.run_until_complete(self._call_async(work))
        with self._transaction(operation) as conn:
            return work(conn)

    async def _call_async(self, work: Callable[[Any], Any]) -> Any:
        with self._deadlines.limit():
            async with self._async.connect() as conn:
                assert conn.sync_connection is not None
                self._deadlines.watch(conn.sync_connection)
                async with conn.begin():
                    result = work(conn)
                    return await result if isawaitable(result) else result

    @contextmanager
    def _transaction(self, operation: Operation) -> Iterator[sa.Connection]:
        if operation.by == "worker":
            block = self._database.statement if operation.alone else self._database.transaction
            with block() as conn:
                yield conn
        elif operation.by == "handler":
            # The handler's own statements have an end to their waits here, too: they are cut like the others.
            with ExitStack() as ending, read_committed(self._handlers, self._deadlines) as conn:
                ending.enter_context(self._deadlines.limit(conn))
                yield conn
        else:
            with self._deadlines.limit(), self._own.connect() as conn:
                self._deadlines.watch(conn)
                with conn.begin():
                    yield conn

    def forget(self) -> None:
        """Begin with a new connection."""
        self._database.close()
        self._own.dispose()
        self._handlers.dispose()
        self._loop.run_until_complete(self._async.dispose())

    def close(self) -> None:
        self.forget()
        self._connector.close()
        self._loop.close()
