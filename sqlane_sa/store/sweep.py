"""Sweeps: what has ended is deleted in batches, locked rows skipped, so that processes share the work."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables, moment
from sqlane_sa.statement import BIG, BOOL, INT, TEXT, TEXTS, Statement, Types
from sqlane_sa.store.reading import readable

SWEEP_LINGERS = Statement(
    """
WITH ended AS (DELETE FROM {mutexes} WHERE mutex_key = ANY(ARRAY(
    SELECT mutex_key FROM {mutexes} WHERE held_until <= statement_timestamp()
    ORDER BY held_until LIMIT :max_rows FOR UPDATE SKIP LOCKED)) RETURNING mutex_key)
SELECT count(*) AS deleted FROM ended""",
    {"max_rows": INT},
    {"deleted": BIG},
)

# A lock token is never used again, so a hold whose job does not run under it has no owner for good. For coalesce() see
# `locks.RUNNING`.
SWEEP_ORPHANS = Statement(
    """
WITH orphans AS (DELETE FROM {mutexes} WHERE mutex_key = ANY(ARRAY(
    SELECT m.mutex_key FROM {mutexes} AS m WHERE m.held_until IS NULL AND NOT EXISTS (
        SELECT FROM {jobs} AS j
        WHERE j.id = m.job_id AND coalesce(j.status, '') = 'running' AND j.lock_token = m.lock_token)
    LIMIT :max_rows FOR UPDATE SKIP LOCKED)) RETURNING mutex_key)
SELECT count(*) AS deleted FROM orphans""",
    {"max_rows": INT},
    {"deleted": BIG},
)

# The first rows after a place in the lines, and those of them whose job is not pending there any more.
SWEEP_WAITS = Statement(
    """
WITH looked AS MATERIALIZED (
    SELECT w.mutex_key, w.run_at, w.job_id, w.ctid AS place FROM {waits} AS w
    WHERE w.mutex_key > :after_key ORDER BY w.mutex_key, w.run_at, w.job_id LIMIT :max_rows
), gone AS (
    DELETE FROM {waits} AS w USING looked AS l
    WHERE w.mutex_key = l.mutex_key AND w.run_at = l.run_at AND w.job_id = l.job_id AND NOT EXISTS (
        SELECT FROM {jobs} AS j WHERE j.id = l.job_id AND j.status = 'pending' AND j.run_at = l.run_at)
    RETURNING w.mutex_key)
SELECT (SELECT count(*) FROM gone) AS deleted, max(mutex_key) AS last_key, count(*) = :max_rows AS more FROM looked""",
    {"after_key": TEXT, "max_rows": INT},
    {"deleted": BIG, "last_key": TEXT, "more": BOOL},
)

_EXPIRED = """FROM {jobs} WHERE expires_at <= statement_timestamp() AND status IN ('completed', 'failed')
    AND (expires_at, id) > (CAST(:after_time AS timestamptz), :after_id)
    ORDER BY expires_at, id LIMIT :max_rows FOR UPDATE SKIP LOCKED"""
_EXPIRED_BINDS: Types = {"after_time": TEXT, "after_id": TEXT, "max_rows": INT}

DELETE_EXPIRED = Statement(
    f"""
WITH dropped AS (DELETE FROM {{jobs}} WHERE id = ANY(ARRAY(
    SELECT id {_EXPIRED})) RETURNING id),
emptied AS (DELETE FROM {{payloads}} WHERE id = ANY(ARRAY(SELECT id FROM dropped)))
SELECT count(*) AS deleted FROM dropped""",
    _EXPIRED_BINDS,
    {"deleted": BIG},
)

FIRST_EXPIRED = Statement(
    f"SELECT {readable('expires_at')} AS expires_at, id {_EXPIRED}",
    _EXPIRED_BINDS,
    {"expires_at": moment(), "id": TEXT},
)

MAKE_DUE = Statement(
    """
WITH locked AS MATERIALIZED (
    SELECT id, run_at, mutex_keys, date_trunc('milliseconds', statement_timestamp()) AS due FROM {jobs}
    WHERE status = 'pending' AND job_name = ANY(CAST(:names AS text[])) AND run_at > statement_timestamp()
    ORDER BY id FOR UPDATE
), moved AS (
    UPDATE {jobs} AS j SET run_at = l.due, updated_at = statement_timestamp() FROM locked AS l WHERE j.id = l.id
), left_line AS (
    DELETE FROM {waits} AS w USING locked AS l CROSS JOIN LATERAL unnest(l.mutex_keys) AS k(mutex_key)
    WHERE w.mutex_key = k.mutex_key AND w.run_at = l.run_at AND w.job_id = l.id
), new_place AS (
    INSERT INTO {waits} (mutex_key, run_at, job_id)
    SELECT k.mutex_key, l.due, l.id FROM locked AS l CROSS JOIN LATERAL unnest(l.mutex_keys) AS k(mutex_key)
    WHERE k.mutex_key IS NOT NULL
    ON CONFLICT DO NOTHING
), woken AS (
    SELECT pg_notify(:channel, '') FROM (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp() LIMIT 1) AS s
)
SELECT count(*) AS moved, (SELECT count(*) FROM woken) AS woken FROM locked""",
    {"names": TEXTS, "channel": TEXT},
    {"moved": BIG, "woken": BIG},
)


class MutexSweep(NamedTuple):
    """Rows deleted: lingers that had ended, holds without their running job, places in lines without their job."""

    lingers: int
    orphans: int


class WaitsSweep(NamedTuple):
    """Rows deleted, and the key after which the next sweep starts ("" at the end)."""

    deleted: int
    after_key: str


class ExpiredJob(NamedTuple):
    """Where a finished job stands in the order of expiry."""

    expires_at: datetime
    id: str


def sweep_mutexes(conn: Connection, /, tables: Tables, *, limit: int) -> MutexSweep:
    """Delete ended lingers and holds without their running job, at most `limit` rows of each; the counts of both."""
    parameters = {"max_rows": limit}
    lingers = conn.execute(SWEEP_LINGERS.on(tables), parameters).scalar_one()
    return MutexSweep(lingers, conn.execute(SWEEP_ORPHANS.on(tables), parameters).scalar_one())


def sweep_waits(conn: Connection, /, tables: Tables, *, limit: int, after_key: str = "") -> WaitsSweep:
    """Look at `limit` places in the lines of the keys after `after_key` and delete those left over from jobs changed
    by hand. They block nobody, but they would stay for ever."""
    row = conn.execute(SWEEP_WAITS.on(tables), {"after_key": after_key, "max_rows": limit}).one()
    return WaitsSweep(row.deleted, row.last_key if row.more else "")


def delete_expired(conn: Connection, /, tables: Tables, *, limit: int, after: ExpiredJob | None = None) -> int:
    """Delete at most `limit` finished jobs past their `expires_at`, with their payloads, the oldest first, or the first
    ones after a place; how many."""
    return int(conn.execute(DELETE_EXPIRED.on(tables), _expired(limit, after)).scalar_one())


def first_expired(conn: Connection, /, tables: Tables, *, after: ExpiredJob | None = None) -> ExpiredJob | None:
    """The place of the job that `delete_expired` with a limit of 1 would delete."""
    row = conn.execute(FIRST_EXPIRED.on(tables), _expired(1, after)).first()
    return None if row is None else ExpiredJob(*row)


def _expired(limit: int, after: ExpiredJob | None) -> dict[str, Any]:
    place = ("-infinity", "") if after is None else (after.expires_at.isoformat(), after.id)
    return {"after_time": place[0], "after_id": place[1], "max_rows": limit}


def make_due(conn: Connection, /, tables: Tables, *, names: Collection[str]) -> int:
    """Make the pending jobs of these names due now; how many were not."""
    parameters = {"names": list(names), "channel": tables.channel}
    return int(conn.execute(MAKE_DUE.on(tables), parameters).one().moved)
