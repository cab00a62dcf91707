"""How long a migration may wait for the tables that others use, and what it holds meanwhile.

Whoever comes after a statement that waits for an exclusive lock waits behind it: an ALTER TABLE that waits for one long
transaction would hold up every enqueue for as long. And whoever holds one table while waiting for the next deadlocks
with a transaction that has used them in another order, and the enqueue in that may be the one that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement

from sqlane_sa.migrations import chain, version
from sqlane_sa.migrations.target import Target, operations, target
from sqlane_sa.schema import Tables
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.values.errors import SchemaBusyError

LOCK_TIMEOUT = "1500ms"
"""More than `deadlock_timeout` (by default one second), after which an autovacuum that is in the way gives up."""
NEXT_LOCK_TIMEOUT = "100ms"
"""For all tables together much less than `deadlock_timeout`, after which an enqueue that waits for us could fail."""
ROUNDS = 10

LOCK_NOT_AVAILABLE = "55P03"


class LockTables(ExecutableDDLElement):
    """LOCK TABLE ... IN ACCESS EXCLUSIVE MODE."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables


@compiles(LockTables)
def _lock_tables(element: LockTables, compiler: Any, **_: Any) -> str:
    return f"LOCK TABLE {', '.join(map(compiler.preparer.format_table, element.tables))} IN ACCESS EXCLUSIVE MODE"


@contextmanager
def impatient(conn: Connection, at: Target, found: str | None) -> Iterator[None]:
    """Within, no statement waits longer for a lock than the connection's own `lock_timeout`, or else LOCK_TIMEOUT.

    `found` is the revision that the tables are at. Raises `SchemaBusyError`.
    """
    before = _lock_timeout(conn)
    if before == "0":
        _set(conn, LOCK_TIMEOUT)
    try:
        yield
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise _busy(at, found) from error
    # After an error the rollback sets it back.
    if before == "0":
        _set(conn, before)


def lock(*names: str) -> None:
    """The first call of a revision that alters or drops tables: takes each of them, such as "jobs", for itself.

    It waits for one of them only while it holds none: LOCK_TIMEOUT, or the connection's own `lock_timeout`. When
    another one is not free soon after, all are given back, and it waits for that one first. Raises `SchemaBusyError`
    with nothing changed. Offline it is one statement, which can do no better than wait.
    """
    op, at = operations(), target()
    context = op.get_context()
    tables = Tables(at.prefix, at.schema).metadata.tables.values()
    wanted = [table for table in tables if table.name.removeprefix(at.prefix) in names]
    if context.as_sql:
        op.execute(LockTables(wanted))
        return
    conn = op.get_bind()
    before = _lock_timeout(conn)
    patience = LOCK_TIMEOUT if before == "0" else before
    for _ in range(ROUNDS):
        taken = _take(conn, wanted, patience)
        if taken == len(wanted):
            _set(conn, before)
            return
        if taken == 0:
            break
        wanted.insert(0, wanted.pop(taken))
    raise _busy(at, version.read(conn, version.version_table(at)))


def _take(conn: Connection, tables: Sequence[Table], patience: str) -> int:
    """Lock the tables in turn; how many were to be had. Unless that is all of them, none stays locked."""
    savepoint = conn.begin_nested()
    for count, table in enumerate(tables):
        _set(conn, NEXT_LOCK_TIMEOUT if count else patience)
        try:
            conn.execute(LockTables([table]))
        except DBAPIError as error:
            savepoint.rollback()
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
            return count
    savepoint.commit()
    return len(tables)


def _busy(at: Target, found: str | None) -> SchemaBusyError:
    return SchemaBusyError(
        f"{at} stay at revision {found or 'base'}: another transaction uses one of them, and waiting for it would "
        "hold up every enqueue; try again, or first end the transactions that pg_stat_activity shows as long open",
        current=found,
        head=chain.head(),
    )


def _lock_timeout(conn: Connection) -> str:
    return str(conn.scalar(select(func.current_setting("lock_timeout"))))


def _set(conn: Connection, value: str) -> None:
    conn.execute(select(func.set_config("lock_timeout", value, True)))
