"""Insert one: a new job, its payload and its places in the lines of its keys, in one statement of plain values."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, INT, SMALL, TEXT, Statement, Types, array_literal
from sqlane_sa.store.together import begins_together, with_begin
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.job import NewJob

OPTIONS: Types = {
    "name": TEXT,
    "priority": SMALL,
    "delay_ms": BIG,
    "max_attempts": INT,
    "max_stalls": INT,
    "failure_job": TEXT,
    "completed_retention_ms": BIG,
    "failed_retention_ms": BIG,
}
"""What most jobs of a name have in common; each an attribute of `NewJob`."""
_BINDS: Types = {"id": TEXT, "payload": TEXT, "channel": TEXT, **OPTIONS}
_options = attrgetter(*OPTIONS)

# timestamptz(3) rounds: up to the next millisecond, a job that is due now would not be due yet.
_AFTER_DELAY = """date_trunc('milliseconds',
        statement_timestamp() + CAST(:delay_ms AS bigint) * interval '1 millisecond')"""
_AT_OR_AFTER = """date_trunc('milliseconds', coalesce(CAST(CAST(:run_at AS text) AS timestamptz),
        statement_timestamp() + CAST(:delay_ms AS bigint) * interval '1 millisecond'))"""

# Neither RETURNING nor a conflict target: a role that may only INSERT (and read sleepers) can enqueue.
_JOB = """
WITH new_job AS (
    INSERT INTO {jobs} (id, job_name, status, priority, run_at, attempts, max_attempts, stalls, max_stalls,
                        mutex_keys, failure_job, completed_retention_ms, failed_retention_ms, created_at, updated_at)
    VALUES (:id, :name, 'pending', CAST(:priority AS smallint), RUN_AT, 0, CAST(:max_attempts AS integer), 0,
            CAST(:max_stalls AS integer), KEYS, :failure_job, CAST(:completed_retention_ms AS bigint),
            CAST(:failed_retention_ms AS bigint), statement_timestamp(), statement_timestamp())
)"""

_WAITS = """, new_waits AS (
    INSERT INTO {waits} (mutex_key, run_at, job_id)
    SELECT k.mutex_key, RUN_AT, :id FROM unnest(KEYS) AS k(mutex_key)
)"""

# The last part writes and reads at once: a statement without rows to return costs the client less. The count is
# compared so that no planner may leave it, and the pg_notify() in it, out.
_PAYLOAD = """
INSERT INTO {payloads} (id, payload)
SELECT :id, CAST(:payload AS json)
FROM (SELECT count(pg_notify(:channel, '')) AS count
      FROM (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp() LIMIT 1) AS s) AS woken
WHERE woken.count >= 0"""

INSERT_ONE = Statement((_JOB + _PAYLOAD).replace("RUN_AT", _AFTER_DELAY).replace("KEYS", "NULL"), _BINDS)

INSERT_ONE_SPECIAL = Statement(
    (_JOB + _WAITS + _PAYLOAD).replace("RUN_AT", _AT_OR_AFTER).replace("KEYS", "CAST(:mutex_keys AS text[])"),
    {**_BINDS, "run_at": TEXT, "mutex_keys": TEXT},
)
"""With keys, or a time of its own."""


def insert_one(conn: Connection, tables: Tables, job: NewJob) -> str:
    """Insert a job that has no id yet, and wake a waiting worker at commit; returns its new id."""
    id_ = new_id()
    parameters = {"id": id_, "payload": job.payload, "channel": tables.channel, **options_of(job)}
    if job.mutex_keys or job.run_at is not None:
        keys = array_literal(dict.fromkeys(job.mutex_keys)) if job.mutex_keys else None
        _write(conn, tables, INSERT_ONE_SPECIAL, {**parameters, "run_at": utc(job.run_at), "mutex_keys": keys})
    else:
        _write(conn, tables, INSERT_ONE, parameters)
    return id_


def _write(conn: Connection, tables: Tables, statement: Statement, parameters: dict[str, Any]) -> None:
    if not begins_together(conn):
        statement.write(conn, tables, parameters)
        return
    sql, _ = statement.driver_sql(conn.dialect, tables)
    with with_begin(conn, sql, parameters, statement.numbered(tables)):
        statement.write(conn, tables, parameters)


def options_of(job: NewJob) -> dict[str, Any]:
    """The parameters for `OPTIONS`."""
    return dict(zip(OPTIONS, _options(job), strict=True))


def utc(moment: datetime | None) -> str | None:
    """With its offset in the text, the instant depends on no session setting and on no driver's time zones."""
    return None if moment is None else moment.astimezone(UTC).isoformat()
