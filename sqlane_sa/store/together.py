"""Statements that psycopg sends together, in one round trip.

By the functions of libpq that it gives: its own pipeline takes longer than the round trips that it saves. What waits
for the answers is psycopg, which knows about Ctrl-C and event loops.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from sqlane_sa.statement import Numbered

PREPARED = "sqlane_prepared"
"""In the `info` of a pooled connection: the names that its session knows. A rollback of psycopg deallocates what was
prepared in a session, or does not: whoever sees one takes this out."""
_BEGUN = "sqlane_begun"
"""The same for what is sent with BEGIN, where nobody sees the rollbacks: these names may be gone."""

NOT_PREPARED = ("26000", "42P05")
"""SQLSTATE: no such statement, or one of that name already."""

_READABLE, _WRITABLE = 1, 2  # as psycopg and `selectors` have them

Waits = Generator[int, int, Any]
"""What psycopg waits for, and what it says; the first error, or None."""


class Part(NamedTuple):
    """One of the statements, and its values in the order of $1 and on."""

    statement: Numbered
    values: Sequence[str | None]

    @classmethod
    def of(cls, statement: Numbered, values: Mapping[str, str | int | None]) -> Part:
        given = [values[name] for name in statement.order]
        return cls(statement, [None if value is None else str(value) for value in given])


def sends_together(conn: Connection) -> bool:
    """Whether `commits_after` is for this transaction. Not where nothing may be prepared, as behind a pooler; nor where
    the next statement is about to be refused, or to wait for something else: those errors are the driver's."""
    if conn.dialect.driver != "psycopg" or conn.connection.is_detached:
        return False
    raw: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.loaded_dbapi
    states = dbapi.pq.TransactionStatus
    return (
        _may_prepare(raw, dbapi)
        and raw.pgconn.transaction_status in (states.IDLE, states.INTRANS)
        and getattr(raw.commit, "__func__", None) is dbapi.Connection.commit  # not the application's, to be called
    )


def _may_prepare(raw: Any, dbapi: Any) -> bool:
    return bool(
        raw.prepare_threshold is not None
        and not raw.autocommit
        and raw.read_only is None
        and raw.deferrable is None
        and raw.pgconn.pipeline_status == dbapi.pq.PipelineStatus.OFF
        and dbapi.Pipeline.is_supported()
    )


@contextmanager
def commits_after(conn: Connection, parts: Sequence[Part]) -> Iterator[None]:
    """Within, a commit of `conn` sends the parts and COMMIT, and a BEGIN where there was none, in one round trip. Their
    rows are not read. The server leaves out what comes after an error, which the commit raises, rolled back.
    """
    raw: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.loaded_dbapi
    info = conn.connection.info

    def commit() -> None:
        try:
            error = _prepare(raw, dbapi.pq, info, parts) or exchange(raw, dbapi.pq, _with_commit(raw, dbapi.pq, parts))
            if error is not None:
                info.pop(PREPARED, None)
                if not raw.closed:
                    raw.rollback()  # nobody else would: after its commit SQLAlchemy takes the transaction for ended
        except BaseException:
            # Nobody knows what of the answers was read; and as it is, a pool that resets nothing would hand the
            # transaction to the next job, which commits it.
            raw.close()
            raise
        if error is not None:
            raise dbapi.errors.error_from_result(error, raw.info.encoding)

    # In the place where SQLAlchemy calls it: after all listeners, which may refuse, and with its own way of errors.
    raw.commit = commit
    try:
        yield
    finally:
        del raw.commit


def _prepare(raw: Any, pq: Any, info: dict[Any, Any], parts: Sequence[Part]) -> Any:
    """The error of a part that cannot be prepared, or None."""
    prepared = info.get(PREPARED)
    if prepared is None:
        found = raw.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE 'sqlane%'")
        prepared = info[PREPARED] = {name for (name,) in found}
    for part in parts:
        if part.statement.name not in prepared:
            error = exchange(raw, pq, [_preparation(raw, part)])
            if error is not None:
                return error
            prepared.add(part.statement.name)
    return None


def begins_together(conn: Connection) -> bool:
    """Whether `with_begin` is for the next statement: the first of its transaction, and nobody else sends it."""
    if conn.dialect.driver not in ("psycopg", "psycopg_async") or conn.connection.is_detached:
        return False
    raw: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.loaded_dbapi
    return raw.pgconn.transaction_status == dbapi.pq.TransactionStatus.IDLE and (
        raw.cursor_factory is dbapi.Cursor or raw.cursor_factory is dbapi.AsyncCursor
    )


@contextmanager
def with_begin(conn: Connection, sql: str, parameters: Mapping[str, Any], statement: Numbered) -> Iterator[None]:
    """Within, `conn` sends BEGIN and this statement in one round trip; any other, also one that a listener has made of
    it, as ever. It returns no rows. As the driver's `sql` with `parameters` it is what listeners and errors show.
    """
    raw: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.loaded_dbapi
    factory = raw.cursor_factory
    known: set[str] = conn.connection.info.setdefault(_BEGUN, set())
    first = _First(dbapi, known, sql, parameters, statement)

    def cursor(*arguments: Any, **options: Any) -> Any:
        new = _first_cursor(factory)(*arguments, **options)
        new.first = first
        return new

    # In the place where SQLAlchemy asks for one: after all that it checks, and with its own way of errors.
    raw.cursor_factory = cursor
    try:
        yield
    finally:
        raw.cursor_factory = factory


class _First(NamedTuple):
    """The statement that may come first."""

    dbapi: Any
    known: set[str]
    sql: str
    parameters: Mapping[str, Any]
    statement: Numbered

    def is_it(self, raw: Any, sql: object, parameters: object) -> bool:
        """As late as this: a listener may have made the transaction one that only reads, or have used it."""
        return (
            sql == self.sql
            and parameters == self.parameters
            and raw.pgconn.transaction_status == self.dbapi.pq.TransactionStatus.IDLE
            and _may_prepare(raw, self.dbapi)
            and self._has_room(raw)
        )

    def _has_room(self, raw: Any) -> bool:
        """Whether the session may keep one more: queues may be as many as tenants, and the server's memory is not."""
        most = raw.prepared_max
        return self.statement.name in self.known or most is None or len(self.known) < most

    def send(self, raw: Any) -> Waits:
        """A statement that is not prepared any more, or is although we do not know it, has a second try: nothing else
        has been done in the transaction."""
        session, name = raw.pgconn, self.statement.name
        part = Part.of(self.statement, self.parameters)
        rest = [_begin(raw, raw.isolation_level), _execution(raw, part)]
        new = name not in self.known
        try:
            error = yield from _exchanged(
                session, self.dbapi.pq, [rest[0], *([_preparation(raw, part)] * new), rest[1]]
            )
            if error is not None and _sqlstate(error, self.dbapi.pq) in NOT_PREPARED:
                again = [
                    (session.send_query_params, b"ROLLBACK", None),
                    rest[0],
                    *([_preparation(raw, part)] * (not new)),
                ]
                second = yield from _exchanged(session, self.dbapi.pq, [*again, rest[1]])
                # Of those again: it was a trigger's, and is what it was at first.
                if second is None or _sqlstate(second, self.dbapi.pq) not in NOT_PREPARED:
                    error = second
        except BaseException:
            session.finish()  # nobody knows what of the answers was read
            raise
        if error is None:
            self.known.add(name)
        return error

    def refuse(self, raw: Any, error: Any) -> None:
        if error is not None:
            raise self.dbapi.errors.error_from_result(error, raw.info.encoding)


@cache
def _first_cursor(factory: Any) -> Any:
    """The class of cursors for it, from one of psycopg's two."""
    asynchronous = factory.__name__ == "AsyncCursor"

    class Cursor(factory):  # type: ignore[misc]
        first: _First
        _inserted: int | None = None

        @property
        def rowcount(self) -> int:
            return super().rowcount if self._inserted is None else self._inserted

        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            first, raw = self.first, self.connection
            self._inserted = None
            if not first.is_it(raw, query, params):
                return super().execute(query, params, **options)
            return self._send_first_async() if asynchronous else self._send_first()

        def _send_first(self) -> Any:
            raw = self.connection
            with raw.lock:
                self.first.refuse(raw, raw.wait(self.first.send(raw)))
            self._inserted = 1
            return self

        async def _send_first_async(self) -> Any:
            raw = self.connection
            async with raw.lock:
                self.first.refuse(raw, await raw.wait(self.first.send(raw)))
            self._inserted = 1
            return self

    return Cursor


Call = tuple[Any, bytes, Any]
"""A function of libpq that sends something, and what."""


def _begin(raw: Any, level: Any) -> Call:
    what = b"BEGIN" if level is None else b"BEGIN ISOLATION LEVEL " + level.name.replace("_", " ").encode()
    return (raw.pgconn.send_query_params, what, None)


def _preparation(raw: Any, part: Part) -> Call:
    return (raw.pgconn.send_prepare, part.statement.name.encode(), part.statement.sql.encode(raw.info.encoding))


def _execution(raw: Any, part: Part) -> Call:
    encoding = raw.info.encoding
    values = [None if value is None else value.encode(encoding) for value in part.values]
    return (raw.pgconn.send_query_prepared, part.statement.name.encode(), values)


def _with_commit(raw: Any, pq: Any, parts: Sequence[Part]) -> list[Call]:
    calls = [_execution(raw, part) for part in parts]
    if raw.pgconn.transaction_status == pq.TransactionStatus.IDLE:
        calls.insert(0, (raw.pgconn.send_query_params, b"BEGIN ISOLATION LEVEL READ COMMITTED", None))
    return [*calls, (raw.pgconn.send_query_params, b"COMMIT", None)]


def exchange(raw: Any, pq: Any, calls: Sequence[Call]) -> Any:
    """Send them, and wait for all of the answers; the first error, or None."""
    with raw.lock:
        return raw.wait(_exchanged(raw.pgconn, pq, calls))


def _exchanged(session: Any, pq: Any, calls: Sequence[Call]) -> Waits:
    session.enter_pipeline_mode()
    for send, what, values in calls:
        send(what, values)
    session.pipeline_sync()
    while session.flush():
        if (yield _READABLE | _WRITABLE) & _READABLE:
            session.consume_input()
    return (yield from _first_error(session, pq))


def _first_error(session: Any, pq: Any) -> Waits:
    error: Any = None
    while True:
        while session.is_busy():
            if (yield _READABLE):
                try:
                    session.consume_input()
                except Exception:
                    if error is None:
                        raise
                    return error  # why the server has ended the connection
        result = session.get_result()
        if result is None:
            continue  # the end of what one statement has to say
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            session.exit_pipeline_mode()
            return error
        if result.status == pq.ExecStatus.FATAL_ERROR:
            error = error or result


def _sqlstate(error: Any, pq: Any) -> str:
    return (error.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
