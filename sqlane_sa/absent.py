"""Tables that are not in a database: what is said of them, and the next step."""

from __future__ import annotations

import shlex

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from sqlane_sa.schema import Tables
from sqlane_sa.sqlstate import UNDEFINED_TABLE, sqlstate


def explain_absent(error: DBAPIError, conn: Connection, tables: Tables) -> None:
    """Where a statement of ours found no table of the queue: the next step as a note, and not the statement, whose
    twenty lines would be all that a terminal shows. Sends nothing: the transaction is the caller's, and has failed."""
    if sqlstate(error) != UNDEFINED_TABLE or tables.prefix not in str(error.orig):
        return  # also a table that a trigger of the application's misses
    error.statement = None
    url = conn.engine.url
    database = f" {url.database!r}" if url.database else ""
    schema = "" if tables.schema is None else f" in schema {tables.schema!r}"
    error.add_note(
        f"the tables {tables.prefix + '*'!r}{schema} are not in the database{database}{server_of(url)}, or not where "
        "this connection looks for them: run `alembic upgrade head` if an Alembic chain of yours has them, or else run "
        f"`{migrate_command(tables.prefix, tables.schema)}` (docs/migrations.md); or give Queue(prefix=..., "
        "schema=...) as they were made"
    )


def server_of(url: URL) -> str:
    """Where the URL has it, the server's place, for whoever looks at another one."""
    return f" on {url.host}{f':{url.port}' if url.port else ''}" if url.host else ""


def migrate_command(prefix: str, schema: str | None) -> str:
    """The command line that brings these tables to the newest revision."""
    words = ["sqlane", "migrate"]
    if prefix != "sqlane_":
        words += ["--prefix", prefix]
    if schema is not None:
        words += ["--schema", schema]
    return shlex.join(words)
