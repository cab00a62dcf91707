"""The connection that a migration runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.util.concurrency import in_greenlet

from sqlane_sa.handles import in_autocommit
from sqlane_sa.values.errors import AutocommitError, HandleError


@contextmanager
def writing(bind: object, function: str) -> Iterator[Connection]:
    """A connection in a transaction.

    An Engine's is committed at the end. A Connection's stays the caller's: the work is under a savepoint, so that an
    error leaves the transaction usable.
    """
    _check(bind, function)
    if isinstance(bind, Engine):
        # Under a stricter level, whoever waited for another migration could not see what it did.
        with bind.connect() as conn:
            conn.execution_options(isolation_level="READ COMMITTED")
            with conn.begin(), untranslated(conn):
                yield conn
    elif isinstance(bind, Connection):
        refuse_autocommit(bind, f"migrations.{function}()")
        with untranslated(bind), bind.begin_nested():
            yield bind


@contextmanager
def reading(bind: object, function: str) -> Iterator[Connection]:
    """A connection to read with; a transaction that the reading began does not stay open."""
    _check(bind, function)
    if isinstance(bind, Engine):
        with bind.connect() as conn, untranslated(conn):
            yield conn
    elif isinstance(bind, Connection):
        begun = bind.in_transaction()
        try:
            with untranslated(bind):
                yield bind
        finally:
            if not begun:
                bind.rollback()


@contextmanager
def untranslated(conn: Connection) -> Iterator[None]:
    """A `schema_translate_map` does not reach the statements of a queue, so that its tables must not move either."""
    schemas: Any = conn.get_execution_options().get("schema_translate_map")
    if not schemas:
        yield
        return
    conn.execution_options(schema_translate_map=None)
    try:
        yield
    finally:
        conn.execution_options(schema_translate_map=schemas)


def refuse_autocommit(conn: Connection, what: str) -> None:
    """Raises `AutocommitError`: a migration that fails halfway must leave nothing."""
    if in_autocommit(conn):
        raise AutocommitError(
            f"{what} needs a transaction, and this connection is in AUTOCOMMIT; "
            'use connection.execution_options(isolation_level="READ COMMITTED"), or pass the Engine'
        )


def refuse_other_databases(dialect: Dialect, what: str) -> None:
    """Raises `HandleError` for anything but PostgreSQL."""
    if dialect.name != "postgresql":
        raise HandleError(f"{what} needs PostgreSQL, and this is {dialect.name}; use a postgresql:// URL")


def _check(bind: object, function: str) -> None:
    call = f"migrations.{function}()"
    if not isinstance(bind, Engine | Connection):
        raise HandleError(
            f"{call} takes an Engine or a Connection, and got {type(bind).__name__}; {_right_form(bind, function)}"
        )
    refuse_other_databases(bind.dialect, call)
    if bind.dialect.is_async and not in_greenlet():
        raise HandleError(
            f"{call} got the {type(bind).__name__} of an async engine, which works only inside run_sync; "
            f"{_ASYNC.format(function)}"
        )


_ASYNC = "use `async with engine.begin() as conn: await conn.run_sync(migrations.{}, queue)`"


def _right_form(bind: object, function: str) -> str:
    if isinstance(bind, str):
        return "pass sqlalchemy.create_engine(url)"
    if any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(bind).__mro__):
        return _ASYNC.format(function)
    if callable(getattr(bind, "connection", None)):
        return "pass session.connection()"
    return "pass sqlalchemy.create_engine(...), or a connection of it"
