"""Backlog: ended jobs whose retention is over, and that no sweeper has deleted."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, INT, Statement

# By the index of what expires, oldest first, as the sweeper reads it.
OVERDUE = Statement(
    """
SELECT count(*) AS jobs,
       CAST(extract(epoch FROM statement_timestamp() - min(expires_at)) * 1000 AS bigint) AS oldest_ms
FROM (SELECT expires_at FROM {jobs}
      WHERE expires_at <= statement_timestamp() AND status IN ('completed', 'failed')
      ORDER BY expires_at LIMIT :max_rows) AS e""",
    {"max_rows": INT},
    {"jobs": BIG, "oldest_ms": BIG},
)


class Overdue(NamedTuple):
    """How many, counted up to a limit, and for how many ms the first has been (0 where there is none)."""

    jobs: int
    oldest_ms: int


def find_overdue(conn: Connection, /, tables: Tables, *, limit: int) -> Overdue:
    """The ended jobs whose retention is over; reads `limit` rows at most."""
    row = conn.execute(OVERDUE.on(tables), {"max_rows": limit}).one()
    return Overdue(row.jobs, row.oldest_ms or 0)
