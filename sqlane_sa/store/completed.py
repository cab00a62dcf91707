"""Completed jobs that are still kept, counted. No index has them by name: to count them is to read the jobs table."""

from __future__ import annotations

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, TEXT, Statement, table_name

# The name as data: only so does to_regclass look it up as any statement would, by the search path.
SIZE = Statement("SELECT pg_relation_size(to_regclass(:name)) AS bytes", {"name": TEXT}, {"bytes": BIG})

COMPLETED = Statement(
    """
SELECT job_name, count(*) AS completed FROM {jobs} WHERE status = 'completed' GROUP BY job_name ORDER BY job_name""",
    {},
    {"job_name": TEXT, "completed": BIG},
)


def count_completed(conn: Connection, /, tables: Tables, *, max_bytes: int | None = None) -> dict[str, int] | None:
    """Name to completed jobs that are kept, for the names that have any; None, and nothing is read, when the jobs table
    is larger than `max_bytes`."""
    if max_bytes is not None:
        size = conn.execute(SIZE.on(tables), {"name": table_name(tables.jobs)}).scalar()
        if size is not None and size > max_bytes:
            return None
    return {row.job_name: row.completed for row in conn.execute(COMPLETED.on(tables))}
