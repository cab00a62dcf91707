"""Migrating a queue's tables without an Alembic environment: apply, revert, current, check."""

from __future__ import annotations

from collections.abc import Sequence

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script
from sqlalchemy import Connection

from sqlane_sa.migrations import chain, version
from sqlane_sa.migrations.bind import reading, writing
from sqlane_sa.migrations.target import Target, running, target_of
from sqlane_sa.values.errors import SchemaBehindError


def apply(bind: object, queue: object, revision: str = "head") -> list[str]:
    """Bring the queue's tables up to `revision`; returns the ids of the revisions that ran, in order.

    `bind` is an Engine, and all of it is one transaction, or a Connection, inside whose transaction (READ COMMITTED)
    it stays: nothing is committed. A missing schema is created. At or past `revision` nothing is written or locked, so
    that every process may call it at its start: of several at once, one migrates and the others wait for it.
    Raises `DefinitionError` for an unknown revision, `SchemaAheadError` when a newer version of the package has
    migrated the tables, `HandleError` and `AutocommitError` for a bind that it cannot use.
    """
    at, wanted = target_of(queue), chain.number(revision)
    table = version.version_table(at)
    with writing(bind, "apply") as conn:
        if chain.recorded_number(version.read(conn, table)) >= wanted:
            return []
        version.ensure_schema(conn, at.schema)
        version.lock(conn, table)
        # Read again: whoever held the lock may have done the work.
        steps = chain.revisions()[chain.recorded_number(version.read(conn, table)) : wanted]
        return _run(conn, at, steps, "upgrade")


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
        steps = chain.revisions()[wanted : chain.recorded_number(version.read(conn, table))]
        return _run(conn, at, steps[::-1], "downgrade")


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
    if chain.recorded_number(found) == chain.number("head"):
        return
    state = "not in the database" if found is None else f"at revision {found}"
    raise SchemaBehindError(
        f"{at} are {state}, and this version of sqlane_sa needs {chain.head()}; "
        "run `sqlane migrate`, or call sqlane_sa.migrations.apply(engine, queue)",
        current=found,
        head=chain.head(),
    )


def _run(conn: Connection, at: Target, steps: Sequence[Script], direction: str) -> list[str]:
    with running(at, Operations(MigrationContext.configure(conn))):
        for script in steps:
            getattr(script.module, direction)()
    return [script.revision for script in steps]
