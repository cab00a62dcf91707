"""Migrating a queue's tables without an Alembic environment: apply, revert, current, check."""

from __future__ import annotations

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, func, select

from sqlane_sa.absent import server_of
from sqlane_sa.migrations import calls, chain, version
from sqlane_sa.migrations.bind import reading, writing
from sqlane_sa.migrations.patience import impatient
from sqlane_sa.migrations.target import Target, running, target_of
from sqlane_sa.migrations.unrecorded import refuse_unrecorded
from sqlane_sa.values.errors import SchemaBehindError


def apply(bind: object, queue: object, revision: str = "head") -> list[str]:
    """Bring the queue's tables up to `revision`; returns the ids of the revisions that ran, in order.

    `bind` is an Engine, and all of it is one transaction, or a Connection, inside whose transaction (READ COMMITTED)
    it stays: nothing is committed. A missing schema is created. At or past `revision` nothing is written or locked, so
    that every process may call it at its start: of several at once, one migrates and the others wait for it.
    Raises `DefinitionError` for an unknown revision, `SchemaAheadError` when a newer version of the package has
    migrated the tables, `SchemaBusyError` when a transaction of others keeps a table for two seconds (or the
    connection's own `lock_timeout`), `SchemaBehindError` when the tables are there and no revision made them,
    `HandleError` and `AutocommitError` for a bind that it cannot use.
    """
    at, wanted = target_of(queue), chain.number(revision)
    table = version.version_table(at)
    with writing(bind, "apply") as conn:
        if chain.recorded_number(version.read(conn, table)) >= wanted:
            return []
        version.ensure_schema(conn, at.schema)
        version.lock(conn, table)
        # Read again: whoever held the lock may have done the work.
        found = version.read(conn, table)
        if found is None:
            refuse_unrecorded(conn, at)
        return _run(conn, at, found, wanted) if chain.recorded_number(found) < wanted else []


def revert(bind: object, queue: object, revision: str = "base") -> list[str]:
    """Take the queue's tables back to `revision`; returns the ids of the revisions undone, in order.

    "base" drops all of them with their jobs; the schema stays. `bind` and what is raised are as for `apply`; at or
    before `revision` nothing is written or locked. Stop the workers first: dropping waits for their transactions.
    """
    at, wanted = target_of(queue), chain.number(revision)
    table = version.version_table(at)
    with writing(bind, "revert") as conn:
        if chain.recorded_number(version.read(conn, table)) <= wanted or not version.lock_existing(conn, table):
            return []
        found = version.read(conn, table)
        return _run(conn, at, found, wanted) if chain.recorded_number(found) > wanted else []


def current(bind: object, queue: object) -> str | None:
    """The revision that the queue's tables are at; None when they are not in the database.

    `bind` is an Engine or a Connection. Needs no more than SELECT on the version table.
    """
    table = version.version_table(target_of(queue))
    with reading(bind, "current") as conn:
        return version.read(conn, table)


def check(bind: object, queue: object) -> None:
    """Raise `SchemaBehindError` or `SchemaAheadError` unless the queue's tables are at this version's revision.

    The message is one sentence with the revision and what to do. `bind` as for `current`.
    """
    at = target_of(queue)
    with reading(bind, "check") as conn:
        found = version.read(conn, version.version_table(at))
        if found is None:
            refuse_unrecorded(conn, at)
        place = _place(conn)
    if chain.recorded_number(found) != chain.number("head"):
        message = f"{behind(at, found, place)}; {_next_step(at, found)}"
        raise SchemaBehindError(message, current=found, head=chain.head())


def behind(at: Target, found: str | None, place: str = "") -> str:
    """What is wrong with tables that are at `found`, an older revision, in the database of that `place`."""
    state = f"not in the database{place}" if found is None else f"at revision {found}"
    return f"{at} are {state}, and this version of sqlane_sa needs {chain.head()}"


def _place(conn: Connection) -> str:
    """The name of the database and, where the URL has it, the server's, for whoever looks in another one."""
    return f" {conn.scalar(select(func.current_database()))!r}{server_of(conn.engine.url)}"


def _next_step(at: Target, found: str | None) -> str:
    call = calls.upgrade_call(at, to=chain.head(), from_=found)
    return (
        f"run `alembic upgrade head` if an Alembic chain of yours has them (with a revision that calls {call}), "
        f"or else run `{calls.command(at)}`"
    )


def _run(conn: Connection, at: Target, found: str | None, wanted: int) -> list[str]:
    start = chain.recorded_number(found)
    steps = chain.between(start, wanted)
    with running(at, Operations(MigrationContext.configure(conn))), impatient(conn, at, found):
        for script in steps:
            script.module.upgrade() if start < wanted else script.module.downgrade()
    return [script.revision for script in steps]
