"""COPY, which each driver does in its own way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
