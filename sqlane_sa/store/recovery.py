"""Recovery of stale jobs: running, but their lease has ended, for their process died or blocked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, INT, TEXT, TEXTS, Statement
from sqlane_sa.store.failure import FailResult, FailureBuilder, fail_locked
from sqlane_sa.store.finish import STALL, set_pending
from sqlane_sa.store.locks import linger_keys
from sqlane_sa.values.duration import seconds, to_ms
from sqlane_sa.values.errors import StalledError
from sqlane_sa.values.failure import describe_error
from sqlane_sa.values.job import JobLock

MAX_STALL_DELAY = 3600.0
"""Seconds. A job that kills its process comes back at most once an hour."""

FIND_STALE = Statement(
    """
SELECT id FROM {jobs} WHERE status = 'running' AND locked_until < statement_timestamp()
ORDER BY locked_until, id LIMIT :max_rows""",
    {"max_rows": INT},
    {"id": TEXT},
)

# A renewal or a finish that holds the row wins: it is skipped, and no longer stale once they have committed. For
# coalesce() see `locks.RUNNING`.
LOCK_STALE = Statement(
    """
SELECT id, job_name, lock_token, locked_by, attempts, max_attempts, stalls, max_stalls, mutex_keys, failure_job,
       failed_retention_ms
FROM {jobs}
WHERE id = ANY(CAST(:ids AS text[])) AND coalesce(status, '') = 'running' AND locked_until < statement_timestamp()
FOR NO KEY UPDATE SKIP LOCKED""",
    {"ids": TEXTS},
    {
        "id": TEXT,
        "job_name": TEXT,
        "lock_token": TEXT,
        "locked_by": TEXT,
        "attempts": INT,
        "max_attempts": INT,
        "stalls": INT,
        "max_stalls": INT,
        "mutex_keys": TEXTS,
        "failure_job": TEXT,
        "failed_retention_ms": BIG,
    },
)


class Recovery(NamedTuple):
    """What became of a stale job: `status` is pending or failed, or None when it was not stale any more."""

    id: str
    status: str | None
    stalls: int = 0
    delay: float = 0.0
    failure: FailResult | None = None
    name: str | None = None
    locked_by: str | None = None


def find_stale(conn: Connection, /, tables: Tables, *, limit: int) -> list[str]:
    """Ids of running jobs whose lease has ended, oldest first, at most `limit`."""
    return list(conn.execute(FIND_STALE.on(tables), {"max_rows": limit}).scalars())


def recover_stale(
    conn: Connection,
    /,
    tables: Tables,
    *,
    id: str,
    lease: float | timedelta,
    stall_delay: float | timedelta = 30.0,
    build_failure_job: FailureBuilder | None = None,
) -> Recovery:
    """Take one stale job back, under its row lock and only if it is still stale.

    Its keys linger for `lease` seconds, for the old handler may still run. It becomes pending after
    min(stall_delay x 2^stalls, 1 h) seconds, one stall more and no attempt used; when its stalls had reached
    max_stalls it fails for good, with its failure job as in `fail`.
    """
    return recover_stale_many(
        conn, tables, ids=[id], lease=lease, stall_delay=stall_delay, build_failure_job=build_failure_job
    )[0]


def recover_stale_many(
    conn: Connection,
    /,
    tables: Tables,
    *,
    ids: Sequence[str],
    lease: float | timedelta,
    stall_delay: float | timedelta = 30.0,
    build_failure_job: FailureBuilder | None = None,
) -> list[Recovery]:
    """`recover_stale` for many jobs at once; a result for each, in their order."""
    rows = conn.execute(LOCK_STALE.on(tables), {"ids": list(ids)}).all() if ids else []
    linger_keys(conn, tables, [JobLock(row.id, row.lock_token) for row in rows], to_ms(seconds(lease, "lease")))
    delay = seconds(stall_delay, "stall_delay")
    failed = {
        row.id: fail_locked(conn, tables, row, _stalled(row), build_failure_job, stalls=1)
        for row in rows
        if row.stalls >= row.max_stalls
    }
    delays = {row.id: stall_backoff(delay, row.stalls) for row in rows if row.id not in failed}
    set_pending(conn, tables, STALL, [(row.id, delays[row.id], _stalled(row)) for row in rows if row.id in delays])
    recovered = {
        row.id: Recovery(
            row.id,
            "failed" if row.id in failed else "pending",
            row.stalls + 1,
            delays.get(row.id, 0.0),
            failed.get(row.id),
            row.job_name,
            row.locked_by,
        )
        for row in rows
    }
    return [recovered.get(id_, Recovery(id_, None)) for id_ in ids]


def stall_backoff(stall_delay: float, stalls: int) -> float:
    """Seconds; the exponent is capped before the power, for stalls may have been set to anything."""
    return min(stall_delay * 2.0 ** min(stalls, 60), MAX_STALL_DELAY)


def _stalled(row: Row[Any]) -> Mapping[str, Any]:
    return describe_error(StalledError(stalls=row.stalls + 1, max_stalls=row.max_stalls))
