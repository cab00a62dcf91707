"""Presence: whether the tables show a worker at work. None has to sign on, so it is seen by what it does."""

from __future__ import annotations

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BOOL, TEXT, Statement

WORKER_SEEN = Statement(
    """
SELECT EXISTS (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp())
       OR EXISTS (SELECT FROM {jobs} WHERE status = 'running' AND locked_until > statement_timestamp()) AS seen""",
    {},
    {"seen": BOOL},
)

RUNNING_NAMES = Statement(
    "SELECT DISTINCT job_name FROM {jobs} WHERE status = 'running' AND locked_until > statement_timestamp()",
    {},
    {"job_name": TEXT},
)


def worker_seen(conn: Connection, /, tables: Tables) -> bool:
    """Whether a worker waits for wake-ups or holds a job with a lease. One that only polls and has nothing to do is not
    seen; one that died is, until its lease ends."""
    return bool(conn.execute(WORKER_SEEN.on(tables)).scalar())


def running_names(conn: Connection, /, tables: Tables) -> set[str]:
    """The names of which a job is held with a lease."""
    return set(conn.execute(RUNNING_NAMES.on(tables)).scalars())
