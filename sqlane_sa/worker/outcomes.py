"""The one place that maps results of handlers to writes of the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.values.failure import ascii_error, plain_error
from sqlane_sa.values.outcome import Completed, Failed, Outcome, Released, Retried
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.running import LEASE_LOST, Finished, RunningJob
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

Result = tuple[RunningJob, Outcome]

# Classes of SQLSTATE that speak of the database's state, or of ours: no connection, rights, read-only, rolled back for
# another session, no such table, no resources, an operator, the system, the server itself. Wait for the end of it. All
# others say that this statement can never succeed with these rows, however often it is tried: bad data, a constraint,
# a limit, and what a trigger raises, which may have any code that its author chose.
_OUTAGES = (
    *("00", "03", "08", "0A", "0L", "0P", "25", "26", "28", "2D", "34", "3B", "3D", "3F"),
    *("40", "42", "53", "55", "57", "58", "72", "F0", "HV", "XX"),
)

# What a statement fails with for the sake of another session: serialization failure, deadlock, lock not available,
# cancelled (by a time limit, or by hand).
_CONTENDED = ("40001", "40P01", "55P03", "57014")


def results_to_write(finished: Sequence[Finished]) -> list[Result]:
    """Nothing is written of a job whose lease was lost, nor of one that its own transaction has completed."""
    return [(job, outcome) for job, outcome in finished if outcome is not None and job.cancelled != LEASE_LOST]


def is_simple(job: RunningJob, outcome: Outcome | None) -> bool:
    """Whether it is a completion, which one statement writes for many jobs."""
    return type(outcome) is Completed


def complete_at_once(database: Database, queue: Queue, results: Sequence[Result]) -> list[Result]:
    """Write completions: those of jobs with keys in a statement, those without in another, and in one more those whose
    rows were locked when they were tried before. The results that were passed over: their rows are locked, or not ours
    any more."""
    jobs = [job for job, _ in results]
    changed: set[str] = set()
    for group, complete in (
        ([job for job in jobs if not (job.mutex_keys or job.passed_over)], store.complete_free),
        ([job for job in jobs if not job.mutex_keys and job.passed_over], store.complete_unlocked),
        ([job for job in jobs if job.mutex_keys], store.complete_keyed),
    ):
        if group:
            with database.statement() as conn:
                changed.update(complete(conn, queue.tables, jobs=group))
    return [result for result in results if result[0].id not in changed]


def write(conn: Connection, queue: Queue, results: Sequence[Result]) -> list[str]:
    """Write the results of a batch in the caller's transaction; the ids changed. What else to log is in `report`."""
    tables = queue.tables
    completed = [job for job, outcome in results if isinstance(outcome, Completed)]
    retries = [_retry(job, outcome) for job, outcome in results if isinstance(outcome, Retried)]
    releases = [_release(job, outcome) for job, outcome in results if isinstance(outcome, Released)]
    changed = store.complete(conn, tables, jobs=completed)
    if retries:
        changed += store.retry_many(conn, tables, retries=retries)
    if releases:
        changed += store.release_many(conn, tables, releases=releases)
    for job, outcome in results:
        if isinstance(outcome, Failed) and _fail(conn, queue, job, outcome):
            changed.append(job.id)
    return changed


def report(results: Sequence[Result], changed: Sequence[str]) -> None:
    """Log the results that changed nothing: the lease was lost, or an earlier try of the same write committed."""
    if len(changed) < len(results):
        known = set(changed)
        for job, outcome in results:
            if job.id not in known:
                log.warning(
                    "job %s (%s): %s changed nothing; its lease was lost, or it was written before",
                    job.id,
                    job.claimed.name,
                    type(outcome).__name__,
                )


def write_apart(database: Database, queue: Queue, results: Sequence[Result]) -> list[Result]:
    """Write a batch that failed as a whole; the results that have to wait for somebody else's lock come back.

    Around the rows that are locked, and by halves, until the row that cannot be written stands alone. Raises on an
    outage; what is written by then is fenced against being written again.
    """
    try:
        return _write_free(database, queue, results)
    except Exception as error:
        locked = isinstance(error, _LockedError)
        if not (locked or is_hopeless(error)):
            raise
        if len(results) == 1:
            if not locked:
                return _write_instead(database, queue, *results[0], error)
            results[0][0].refusal = _refusal(error.__cause__)
            return list(results)
    half = len(results) // 2
    return write_apart(database, queue, results[:half]) + write_apart(database, queue, results[half:])


def is_hopeless(error: BaseException) -> bool:
    """Whether a failed statement says something about its own rows, and not about the database's state."""
    if not isinstance(error, DBAPIError):
        # No connection, no file for one, no memory: whichever rows it was for.
        return isinstance(error, Exception) and not isinstance(error, OSError | MemoryError)
    if error.connection_invalidated:
        return False
    code = sqlstate(error)
    # Without a code, a DataError says that the driver could not read what came back.
    return not code.startswith(_OUTAGES) if code else isinstance(error, DataError)


def is_contended(error: BaseException) -> bool:
    """Whether a statement gave way to another session, mostly one that holds a lock: it may succeed soon."""
    return isinstance(error, DBAPIError) and sqlstate(error) in _CONTENDED


def may_pass(error: BaseException) -> bool:
    """Whether a statement failed for something that may end, on a connection that goes on. It may be for one row of
    many: another session has locked that, or a trigger met an outage of its own. So the others are tried apart."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    return sqlstate(error).startswith(_OUTAGES)


def may_be_one_rows(error: BaseException) -> bool:
    """Whether one row may be why a statement for many failed: so it is tried in parts."""
    return is_hopeless(error) or may_pass(error)


class _LockedError(Exception):
    """A row that a result is written to is locked, or refused for now; a lock on a whole table is an outage."""


def _refusal(error: BaseException | None) -> str | None:
    return first_line(error) if error is not None and not is_contended(error) else None


def _write_free(database: Database, queue: Queue, results: Sequence[Result]) -> list[Result]:
    with database.transaction() as conn:
        store.wait_briefly(conn)
        locked = store.find_locked(conn, queue.tables, jobs=[job for job, _ in results])
        free = [result for result in results if (result[0].id, result[0].lock_token) not in locked]
        try:
            changed = write(conn, queue, free)
        except DBAPIError as error:
            raise (_LockedError() if may_pass(error) else error) from error
    report(free, changed)
    return [result for result in results if (result[0].id, result[0].lock_token) in locked]


def _write_instead(
    database: Database, queue: Queue, job: RunningJob, outcome: Outcome, error: Exception
) -> list[Result]:
    """The result with its error in ASCII; or a plain failure in its place; or one without any error text; or leave it
    to its lease."""
    log.warning("job %s (%s): its result could not be written: %s", job.id, job.claimed.name, first_line(error))
    plain = plain_error("ResultNotStored", f"the result {type(outcome).__name__} could not be stored; see the log")
    fallbacks = [_plain(job, outcome, plain), _plain(job, outcome, None)]
    if isinstance(outcome, Retried | Failed) and (escaped := ascii_error(outcome.error)) != outcome.error:
        fallbacks.insert(0, replace(outcome, error=escaped))
    for fallback in fallbacks:
        try:
            # What waits for a lock is the result itself: it may be taken once the row is free.
            return [(job, outcome)] if _write_free(database, queue, [(job, fallback)]) else []
        except _LockedError:
            return [(job, outcome)]
        except Exception as problem:
            if not is_hopeless(problem):
                raise
            log.warning("job %s (%s): nor could %s: %s", job.id, job.claimed.name, fallback, first_line(problem))
    log.error("job %s (%s): no result can be stored; it will stall when its lease ends", job.id, job.claimed.name)
    return []


def _plain(job: RunningJob, outcome: Outcome, error: dict[str, object] | None) -> Outcome:
    if isinstance(outcome, Released):
        return outcome
    linger = outcome.linger if isinstance(outcome, Retried | Failed) else None
    if isinstance(outcome, Retried) or job.claimed.attempt < job.claimed.max_attempts:
        return Retried(outcome.delay if isinstance(outcome, Retried) else 0.0, error, linger)  # type: ignore[arg-type]
    return Failed(error, linger)  # type: ignore[arg-type]


def _fail(conn: Connection, queue: Queue, job: RunningJob, outcome: Failed) -> bool:
    build: Callable[..., object] = queue.build_failure_job
    result = store.fail(
        conn,
        queue.tables,
        job=job,
        error=outcome.error,
        build_failure_job=build,  # type: ignore[arg-type]
        linger=outcome.linger,
    )
    report_failure_job(job.id, job.claimed.name, result)
    return result.changed


def report_failure_job(job_id: str, name: str | None, result: store.FailResult) -> None:
    if result.failure_job_error:
        log.error("job %s (%s) failed, and its failure job was not added: %s", job_id, name, result.failure_job_error)


def _retry(job: RunningJob, outcome: Retried) -> store.RetryWrite:
    return store.RetryWrite(job.id, job.lock_token, outcome.delay, outcome.error, job.mutex_keys, outcome.linger)


def _release(job: RunningJob, outcome: Released) -> store.ReleaseWrite:
    return store.ReleaseWrite(job.id, job.lock_token, outcome.delay, outcome.linger, job.mutex_keys)
