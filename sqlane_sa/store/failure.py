"""Fail: a job ends for good, and the job that reacts to it is enqueued in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from sqlane_sa.schema import Tables
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.statement import BIG, INT, TEXT, TEXTS, Statement
from sqlane_sa.store.insert import insert_jobs
from sqlane_sa.store.locks import Locked, free_keys, linger_keys, lock_running
from sqlane_sa.store.payloads import read_payload_texts
from sqlane_sa.values.duration import optional_seconds, to_ms
from sqlane_sa.values.errors import HandlerExitError, PayloadError
from sqlane_sa.values.failure import error_dict, error_json
from sqlane_sa.values.job import FailedJob, NewJob
from sqlane_sa.values.payload import decode

# Classes of SQLSTATE: connection, transaction rollback, resources, object state (a lock), intervention, system.
_OUTAGES = ("08", "40", "53", "55", "57", "58")

FailureBuilder = Callable[[FailedJob], NewJob | None]

# The retention comes from the locked row as a value: Citus refuses a stable function mixed with a column.
FAIL = Statement(
    """
UPDATE {jobs} SET status = 'failed', attempts = attempts + :attempts, stalls = stalls + :stalls,
    last_error = CAST(:error AS jsonb), finished_at = statement_timestamp(),
    expires_at = statement_timestamp() + CAST(:retention_ms AS bigint) * interval '1 millisecond',
    timed_out_at = NULL, lock_token = NULL, locked_by = NULL, locked_until = NULL, updated_at = statement_timestamp()
WHERE id = :id""",
    {"id": TEXT, "attempts": INT, "stalls": INT, "error": TEXT, "retention_ms": BIG},
)

DROP = Statement(
    """
WITH dropped AS (DELETE FROM {jobs} WHERE id = ANY(CAST(:ids AS text[])) RETURNING id)
DELETE FROM {payloads} WHERE id = ANY(ARRAY(SELECT id FROM dropped))""",
    {"ids": TEXTS},
)


class FailResult(NamedTuple):
    """`changed`: whether the job failed now. `failure_job_error` says why its failure job was not added."""

    changed: bool
    failure_job_id: str | None = None
    failure_job_error: str | None = None


def fail(
    conn: Connection,
    /,
    tables: Tables,
    *,
    job: Locked,
    error: object,
    build_failure_job: FailureBuilder | None = None,
    linger: float | timedelta | None = None,
) -> FailResult:
    """Fail one running job for good: one attempt more, error and payload kept for its retention, keys freed, or held
    for `linger` seconds more because its handler still runs.

    `error` is a JSON-safe mapping, an exception, a text or None.
    When the job names a failure job, `build_failure_job(FailedJob)` returns the `NewJob` to insert, or None for none.
    Building and inserting run under a savepoint: if they fail, the job still fails and the result says why.
    Raises SQLAlchemy's `DBAPIError` for a deadlock, a timeout or a lost connection: the whole is to be repeated.
    """
    kept = optional_seconds(linger, "linger")
    row = lock_running(conn, tables, [job]).get((job.id, job.lock_token))
    result = FailResult(False)
    if row is not None:
        result = fail_locked(conn, tables, row, error, build_failure_job, attempts=1)
    if kept:
        linger_keys(conn, tables, [job], to_ms(kept))
    else:
        free_keys(conn, tables, [job])
    return result


def fail_locked(
    conn: Connection,
    tables: Tables,
    row: Row[Any],
    error: object,
    build: FailureBuilder | None,
    *,
    attempts: int = 0,
    stalls: int = 0,
) -> FailResult:
    """Fail the job of a row that this transaction has locked, counting so many attempts and stalls more."""
    payload = read_payload_texts(conn, tables, [row.id]).get(row.id) if row.failure_job and build else None
    if row.failed_retention_ms == 0:
        conn.execute(DROP.on(tables), {"ids": [row.id]})
    else:
        parameters = {
            "id": row.id,
            "attempts": attempts,
            "stalls": stalls,
            "error": error_json(error),
            "retention_ms": row.failed_retention_ms,
        }
        conn.execute(FAIL.on(tables), parameters)
    if not (row.failure_job and build):
        return FailResult(True)
    failed = FailedJob(
        id=row.id,
        name=row.job_name,
        payload=_decoded(payload),
        attempt=row.attempts + attempts,
        max_attempts=row.max_attempts,
        failure_job=row.failure_job,
        error=error_dict(error) or {},
    )
    return _add_failure_job(conn, tables, failed, build)


def _add_failure_job(conn: Connection, tables: Tables, failed: FailedJob, build: FailureBuilder) -> FailResult:
    try:
        with conn.begin_nested():
            job = _built(build, failed)
            if job is None:
                return FailResult(True)
            return FailResult(True, insert_jobs(conn, tables, jobs=[job])[0].id)
    except Exception as problem:
        if isinstance(problem, DBAPIError) and _is_outage(problem):
            raise
        # The rest of a driver's message may hold the row, and a log shows what is said here.
        first = str(problem).strip().partition("\n")[0]
        return FailResult(True, None, f"{type(problem).__name__}: {first}"[:1000])


def _built(build: FailureBuilder, failed: FailedJob) -> NewJob | None:
    """The job to insert; without the payload of the failed one where both together pass the limits of a payload."""
    try:
        try:
            return build(failed)
        except PayloadError:
            return build(replace(failed, payload=None))
    except Exception:
        raise
    except BaseException as error:  # a SystemExit of the user's mutex_keys must not end the thread that fails the job
        raise HandlerExitError(type(error).__name__) from error


def _is_outage(error: DBAPIError) -> bool:
    """Whether a later try may succeed. By PostgreSQL's code, for each driver makes other classes of these errors."""
    if error.connection_invalidated:
        return True
    state = sqlstate(error)
    return state.startswith(_OUTAGES) if state else isinstance(error, OperationalError | InterfaceError)


def _decoded(payload: str | None) -> Any:
    """None for a payload that nobody can read: the failure job reacts to that failure too."""
    try:
        return None if payload is None else decode(payload)
    except PayloadError:
        return None
