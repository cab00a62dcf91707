"""The packaged revisions inside a revision of the application's own chain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection

from sqlane_sa.migrations import chain, version
from sqlane_sa.migrations.bind import refuse_autocommit, refuse_other_databases, untranslated
from sqlane_sa.migrations.patience import impatient
from sqlane_sa.migrations.target import Target, running
from sqlane_sa.migrations.unrecorded import refuse_unrecorded
from sqlane_sa.values.errors import DefinitionError, SchemaError, SqlaneError

DIRECTLY = {"upgrade": "apply", "downgrade": "revert"}
"""What does the same without Alembic."""


def upgrade(to: str | None, from_: str | None = None, prefix: str = "sqlane_", schema: str | None = None) -> None:
    """Call in the upgrade() of an Alembic revision: runs the packaged revisions after `from_` up to `to`.

    `from_` None: before the first. `to` is an id, such as "sqlane_0001" or "0001"; None is the newest of the installed
    package, which is another one after an update: name it. The schema must exist. Works offline (`--sql`).
    Raises `DefinitionError` for an unknown revision, `SchemaError` when the database is not at `from_`,
    `SchemaBehindError` when the tables are there and no revision made them, `SchemaBusyError` when a transaction of
    others keeps a table for two seconds (or the connection's own `lock_timeout`), `AutocommitError`, `HandleError` (not
    PostgreSQL), and `SqlaneError` outside a revision that Alembic runs.
    """
    at = Target(prefix, schema)
    start, end = chain.number(from_ or "base"), chain.number(to or "head")
    _check_direction("upgrade", older=start, newer=end, from_=from_, to=to)
    with _under_alembic(at, "upgrade") as context:
        if not context.as_sql:
            found = _lock_and_read(context, at)
            if found is None:
                refuse_unrecorded(_connection(context), at)
            _check_start(found, start, at, "upgrade")
        with _impatient(context, at, start):
            for script in chain.between(start, end):
                script.module.upgrade()


def downgrade(
    to: str | None = None, from_: str | None = None, prefix: str = "sqlane_", schema: str | None = None
) -> None:
    """Call in the downgrade() of an Alembic revision: undoes the packaged revisions from `from_` down to after `to`.

    `to` None: before the first, which drops all tables with their jobs. `from_` None: what the database is at, and
    offline (`--sql`) the newest of the installed package. Raises what `upgrade` raises.
    """
    at = Target(prefix, schema)
    end = chain.number(to or "base")
    with _under_alembic(at, "downgrade") as context:
        found = None if context.as_sql else _lock_and_read(context, at)
        # The installed package may be ahead of the revision whose downgrade runs.
        start = chain.number(from_ or found or "head")
        _check_direction("downgrade", older=end, newer=start, from_=from_, to=to)
        if not context.as_sql:
            _check_start(found, start, at, "downgrade")
        with _impatient(context, at, start):
            for script in chain.between(start, end):
                script.module.downgrade()


@contextmanager
def _under_alembic(at: Target, function: str) -> Iterator[MigrationContext]:
    """The context of the revision that runs, with the target set for the packaged ones."""
    context = _context(function)
    refuse_other_databases(context.dialect, f"migrations.{function}()")
    with running(at, Operations(context)):
        if context.as_sql:
            yield context
            return
        refuse_autocommit(_connection(context), f"migrations.{function}()")
        with untranslated(_connection(context)):
            yield context


def _context(function: str) -> MigrationContext:
    context = _context_of_alembic()
    if context is None:
        raise SqlaneError(
            f"migrations.{function}() works only in a revision that Alembic runs; call it in the {function}() of one, "
            f"or use migrations.{DIRECTLY[function]}(engine, queue)"
        )
    return context


def _context_of_alembic() -> MigrationContext | None:
    try:
        context = op.get_context()
    # No environment runs (the second: any more).
    except (NameError, AttributeError):
        return None
    # Alembic leaves the context of a revision that failed.
    over = not context.as_sql and _connection(context).closed
    return None if over else context


@contextmanager
def _impatient(context: MigrationContext, at: Target, start: int) -> Iterator[None]:
    """Offline, patience is a matter of whoever runs the script."""
    if context.as_sql:
        yield
        return
    with impatient(_connection(context), at, chain.name_of(start)):
        yield


def _connection(context: MigrationContext) -> Connection:
    assert context.connection is not None  # it is None offline only
    return context.connection


def _lock_and_read(context: MigrationContext, at: Target) -> str | None:
    """Under the same lock as `apply`: a process that applies at its start waits for the chain, or the chain for it."""
    conn, table = _connection(context), version.version_table(at)
    version.lock(conn, table)
    return version.read(conn, table)


def _check_direction(function: str, *, older: int, newer: int, from_: str | None, to: str | None) -> None:
    if older > newer:
        raise DefinitionError(
            f"migrations.{function}(to={to!r}, from_={from_!r}) goes the wrong way; exchange the two",
            option="to",
            value=to,
        )


def _check_start(found: str | None, start: int, at: Target, function: str) -> None:
    if chain.recorded_number(found) != start:
        raise SchemaError(
            f"{at} are at revision {found or 'base'}, and migrations.{function}() was to start from "
            f"{chain.name_of(start) or 'base'}; when they were migrated another way, mark the Alembic revision that "
            "has this call and nothing else as done (`alembic stamp` with its id: head would skip what comes after "
            "it), or else give the from_ that the database has",
            current=found,
            head=chain.head(),
        )
