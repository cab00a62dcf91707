"""How long a migration may wait for a table that others use.

Whoever comes after a statement that waits for an exclusive lock waits behind it: an ALTER TABLE that waits for one long
transaction would hold up every enqueue for as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from sqlane_sa.migrations import chain
from sqlane_sa.migrations.target import Target
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.values.errors import SchemaBusyError

LOCK_TIMEOUT = "2s"
"""More than `deadlock_timeout` (by default one second), after which an autovacuum that is in the way gives up."""

LOCK_NOT_AVAILABLE = "55P03"


@contextmanager
def impatient(conn: Connection, at: Target, found: str | None) -> Iterator[None]:
    """Within, no statement waits longer for a lock than the connection's own `lock_timeout`, or else LOCK_TIMEOUT.

    `found` is the revision that the tables are at. Raises `SchemaBusyError`.
    """
    before = conn.scalar(select(func.current_setting("lock_timeout")))
    if before == "0":
        _set(conn, LOCK_TIMEOUT)
    try:
        yield
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise SchemaBusyError(
            f"{at} stay at revision {found or 'base'}: another transaction uses one of them, and waiting for it would "
            "hold up every enqueue; try again, or first end the transactions that pg_stat_activity shows as long open",
            current=found,
            head=chain.head(),
        ) from error
    # After an error the rollback sets it back.
    if before == "0":
        _set(conn, before)


def _set(conn: Connection, value: str) -> None:
    conn.execute(select(func.set_config("lock_timeout", value, True)))
