"""Tables that have the names of a queue's, and that no packaged revision made."""

from __future__ import annotations

from sqlalchemy import Connection, func, inspect, select

from sqlane_sa.migrations import calls, chain, version
from sqlane_sa.migrations.target import Target
from sqlane_sa.schema import Tables
from sqlane_sa.values.errors import SchemaBehindError


def refuse_unrecorded(conn: Connection, at: Target) -> None:
    """Raises `SchemaBehindError` when the jobs table is in the database, and no revision in the version table.

    Nothing can go on from there: the packaged revisions would make the tables a second time.
    """
    # Asked in this order: a migration may commit in between.
    if _has_jobs(conn, at) and version.read(conn, version.version_table(at)) is None:
        raise SchemaBehindError(
            f"{at} are in the database, but no revision of sqlane_sa made them (did create_all or autogenerate make "
            "them from queue.metadata?); take them out of what did, drop them, and make them with "
            f"{calls.upgrade_call(at, to=chain.head(), from_=None)} in a revision of yours, or with "
            f"`{calls.command(at)}`",
            current=None,
            head=chain.head(),
        )


def _has_jobs(conn: Connection, at: Target) -> bool:
    """Where a revision would make it: elsewhere on the search path it may be anybody's."""
    schema = at.schema or conn.scalar(select(func.current_schema()))
    return inspect(conn).has_table(Tables(at.prefix, at.schema).jobs.name, schema=schema)
