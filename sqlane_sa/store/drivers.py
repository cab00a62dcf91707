"""What each driver does in its own way, COPY and statements sent together; the only place that knows their names."""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from sqlane_sa.values.errors import HandleError


def check_copy(conn: Connection) -> None:
    """Raises `HandleError` for a driver whose COPY this does not know."""
    if conn.dialect.driver not in ("psycopg", "psycopg_async"):
        raise HandleError(
            f"copy=True needs the driver psycopg, and this connection uses {conn.dialect.driver}; "
            "use an engine for postgresql+psycopg://, or leave copy out"
        )


def copy_in(conn: Connection, statement: str, blocks: Iterable[str]) -> None:
    """Send blocks of text rows to a `COPY ... FROM STDIN` in the transaction that the connection is in.

    What the driver raises is wrapped like the error of any other statement.
    """
    raw: Any = conn.connection.driver_connection
    dialect: Any = conn.dialect
    try:
        if dialect.is_async:
            await_only(_copy_async(raw, statement, blocks))
        else:
            with raw.cursor() as cursor, cursor.copy(statement) as copy:
                for block in blocks:
                    copy.write(block)
    except dialect.loaded_dbapi.Error as error:
        wrapped = DBAPIError.instance(statement, None, error, dialect.loaded_dbapi.Error, dialect=dialect)
        raise wrapped from error


async def _copy_async(raw: Any, statement: str, blocks: Iterable[str]) -> None:
    async with raw.cursor() as cursor, cursor.copy(statement) as copy:
        for block in blocks:
            await copy.write(block)


PREPARED = "sqlane_prepared"
"""In the `info` of a pooled connection: the names that its session knows. A rollback of psycopg deallocates what was
prepared in a session, or does not: whoever sees one takes this out."""


class Part(NamedTuple):
    """A statement of those sent together: a name for the session to keep it under, SQL with $1 and on, values."""

    name: str
    sql: str
    values: Sequence[str | None]


def sends_together(conn: Connection) -> bool:
    """Whether `commits_after` is for this transaction. Not where nothing may be prepared, as behind a pooler; nor where
    the next statement is about to be refused, or to wait for something else: those errors are the driver's."""
    if conn.dialect.driver != "psycopg" or conn.connection.is_detached:
        return False
    raw: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.loaded_dbapi
    states = dbapi.pq.TransactionStatus
    return bool(
        raw.prepare_threshold is not None
        and not raw.autocommit
        and raw.read_only is None
        and raw.deferrable is None
        and raw.pgconn.transaction_status in (states.IDLE, states.INTRANS)
        and dbapi.Pipeline.is_supported()
        and getattr(raw.commit, "__func__", None) is dbapi.Connection.commit  # not the application's, to be called
    )


@contextmanager
def commits_after(conn: Connection, parts: Sequence[Part]) -> Iterator[None]:
    """Within, a commit of `conn` sends the parts and COMMIT, and a BEGIN where there was none, in one round trip. Their
    rows are not read. The server leaves out what comes after an error, which the commit raises, rolled back.

    By the functions of libpq that psycopg gives: its own pipeline takes longer than the round trips that it saves.
    """
    raw: Any = conn.connection.driver_connection
    dbapi: Any = conn.dialect.loaded_dbapi
    info = conn.connection.info

    def commit() -> None:
        try:
            error = _prepare(raw, dbapi.pq, info, parts) or _exchange(raw, dbapi.pq, _calls(raw, dbapi.pq, parts))
            if error is not None:
                info.pop(PREPARED, None)
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
        if part.name not in prepared:
            sql = part.sql.encode(raw.info.encoding)
            error = _exchange(raw, pq, [(raw.pgconn.send_prepare, part.name.encode(), sql)])
            if error is not None:
                return error
            prepared.add(part.name)
    return None


Call = tuple[Any, bytes, Any]
"""A function of libpq that sends something, and what."""


def _calls(raw: Any, pq: Any, parts: Sequence[Part]) -> list[Call]:
    session, encoding = raw.pgconn, raw.info.encoding
    calls: list[Call] = []
    if session.transaction_status == pq.TransactionStatus.IDLE:
        calls.append((session.send_query_params, b"BEGIN ISOLATION LEVEL READ COMMITTED", None))
    for part in parts:
        values = [None if value is None else value.encode(encoding) for value in part.values]
        calls.append((session.send_query_prepared, part.name.encode(), values))
    calls.append((session.send_query_params, b"COMMIT", None))
    return calls


def _exchange(raw: Any, pq: Any, calls: Sequence[Call]) -> Any:
    """Send them, and wait for all of the answers, with the interpreter left to others; the first error, or None."""
    session = raw.pgconn
    with raw.lock:
        session.enter_pipeline_mode()
        for send, what, values in calls:
            send(what, values)
        session.pipeline_sync()
        poll = select.poll()
        poll.register(session.socket, select.POLLIN | select.POLLOUT)
        while session.flush():
            poll.poll()
            session.consume_input()
        poll.modify(session.socket, select.POLLIN)
        error: Any = None
        while True:
            while session.is_busy():
                poll.poll()
                session.consume_input()
            result = session.get_result()
            if result is None:
                continue  # the end of what one statement has to say
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                session.exit_pipeline_mode()
                return error
            if result.status == pq.ExecStatus.FATAL_ERROR:
                error = error or result
