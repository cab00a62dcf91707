"""The version table beside a queue's tables: one row with the revision they are at.

Every packaged revision writes it, so that it tells the truth whoever ran the revision: `apply`, an application's own
chain, or Alembic itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema, CreateTable, ExecutableDDLElement

from sqlane_sa.handles import in_autocommit
from sqlane_sa.migrations.target import Target, operations, target
from sqlane_sa.schema import Tables
from sqlane_sa.sqlstate import UNDEFINED_TABLE, sqlstate

ALREADY_THERE = ("23505", "42P06", "42P07")
"""A unique violation in the catalogue, a duplicate schema, a duplicate table."""


def version_table(at: Target) -> sa.Table:
    """The `Table` object of the version table; its columns never change."""
    return Tables(at.prefix, at.schema).version


def exists(conn: sa.Connection, table: sa.Table) -> bool:
    return sa.inspect(conn).has_table(table.name, schema=table.schema)


def read(conn: sa.Connection, table: sa.Table) -> str | None:
    """The recorded revision; None before the first one, and when there is no version table.

    No lock stays behind: two migrations that kept a reader's lock each would deadlock when they go on to write.
    """
    if not exists(conn, table):
        return None
    try:
        with _leaving_nothing(conn):
            return conn.execute(sa.select(table.c.version_num)).scalars().first()
    except DBAPIError as error:
        # A migration that the SELECT waited for may have dropped the table.
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        return None


@contextmanager
def _leaving_nothing(conn: sa.Connection) -> Iterator[None]:
    if in_autocommit(conn):
        yield
        return
    savepoint = conn.begin_nested()
    try:
        yield
    finally:
        savepoint.rollback()


def record(revision: str | None) -> None:
    """Write that the target's tables are at this revision now; None: they are gone, and the version table goes too.

    The last call of every packaged revision. It works in Alembic's offline mode.
    """
    op = operations()
    table = version_table(target())
    if revision is None:
        op.drop_table(table.name, schema=table.schema)
        return
    conn = op.get_bind()
    # Asked first where it can be: IF NOT EXISTS needs the right to create even when the table exists.
    if op.get_context().as_sql or not exists(conn, table):
        op.execute(CreateTable(table, if_not_exists=True))
    op.execute(table.delete())
    op.execute(table.insert().values(version_num=op.inline_literal(revision)))


def ensure_schema(conn: sa.Connection, schema: str | None) -> None:
    """Create the schema when it is missing."""
    if schema is not None:
        _create(conn, CreateSchema(schema, if_not_exists=True), lambda: sa.inspect(conn).has_schema(schema))


def lock(conn: sa.Connection, table: sa.Table) -> None:
    """Create the version table when it is missing, and lock it until the transaction ends.

    Readers are not disturbed; a second migration of the same tables waits here.
    """
    while True:
        _create(conn, CreateTable(table, if_not_exists=True), lambda: exists(conn, table))
        if lock_existing(conn, table):
            return


def lock_existing(conn: sa.Connection, table: sa.Table) -> bool:
    """Lock the version table until the transaction ends; False when there is none.

    The lock tells, and not the catalogue: a migration that it waits for may drop the table.
    """
    name = conn.dialect.identifier_preparer.format_table(table)
    try:
        with conn.begin_nested():
            conn.exec_driver_sql(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE")
    except DBAPIError as error:
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        return False
    return True


def _create(conn: sa.Connection, ddl: ExecutableDDLElement, is_there: Callable[[], bool]) -> None:
    """IF NOT EXISTS does not help against another transaction: the later one waits, and gets a unique violation."""
    if is_there():
        return
    try:
        with conn.begin_nested():
            conn.execute(ddl)
    except DBAPIError as error:
        if sqlstate(error) not in ALREADY_THERE:
            raise
