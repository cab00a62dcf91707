"""Presence: whether the tables show a worker at work. None has to sign on, so it is seen by what it does."""

from __future__ import annotations

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BOOL, Statement

WORKER_SEEN = Statement(
    """
SELECT EXISTS (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp())
       OR EXISTS (SELECT FROM {jobs} WHERE status = 'running' AND locked_until > statement_timestamp()) AS seen""",
    {},
    {"seen": BOOL},
)


def worker_seen(conn: Connection, /, tables: Tables) -> bool:
    """Whether a worker waits for wake-ups or holds a job with a lease. One that only polls and has nothing to do is not
    seen; one that died is, until its lease ends."""
    return bool(conn.execute(WORKER_SEEN.on(tables)).scalar())
