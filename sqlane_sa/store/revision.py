"""Revision: which one the tables are at."""

from __future__ import annotations

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import TEXT, Statement

READ = Statement("SELECT version_num FROM {version}", {}, {"version_num": TEXT})


def read_revision(conn: Connection, /, tables: Tables) -> str | None:
    """The revision that the tables are recorded to be at, or None. Without a version table the database's error."""
    return conn.execute(READ.on(tables)).scalars().first()
