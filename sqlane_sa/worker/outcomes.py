"""The one place that maps results of handlers to writes of the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.values.failure import plain_error
from sqlane_sa.values.outcome import Completed, Failed, Outcome, Released, Retried
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.running import LEASE_LOST, Finished, RunningJob
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

Result = tuple[RunningJob, Outcome]

# Classes of SQLSTATE that say that this write can never succeed, however often it is tried: data exception, integrity
# constraint, program limit, raised by a trigger. Everything else is an outage, and the write waits for its end.
_HOPELESS = ("22", "23", "54", "P0")


def results_to_write(finished: Sequence[Finished]) -> list[Result]:
    """Nothing is written of a job whose lease was lost, nor of one that its own transaction has completed."""
    return [(job, outcome) for job, outcome in finished if outcome is not None and job.cancelled != LEASE_LOST]


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


def write_apart(database: Database, queue: Queue, results: Sequence[Result]) -> None:
    """Write a batch that failed as a whole by halves, until the row that cannot be written stands alone.

    Raises on an outage; what is written by then is fenced against being written again.
    """
    if len(results) == 1:
        _write_alone(database, queue, *results[0])
        return
    for half in (results[: len(results) // 2], results[len(results) // 2 :]):
        if not _attempt(database, queue, half):
            write_apart(database, queue, half)


def is_hopeless(error: BaseException) -> bool:
    """Whether a failed write says something about its own rows, and not about the database's state."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, Exception)
    return not error.connection_invalidated and sqlstate(error).startswith(_HOPELESS)


def _write_alone(database: Database, queue: Queue, job: RunningJob, outcome: Outcome) -> None:
    """The result itself; or a plain failure in its place; or one without any error text; or leave it to its lease."""
    plain = plain_error("ResultNotStored", f"the result {type(outcome).__name__} could not be stored; see the log")
    for fallback in (outcome, _plain(job, outcome, plain), _plain(job, outcome, None)):
        if _attempt(database, queue, [(job, fallback)]):
            return
    log.error("job %s (%s): no result can be stored; it will stall when its lease ends", job.id, job.claimed.name)


def _plain(job: RunningJob, outcome: Outcome, error: dict[str, object] | None) -> Outcome:
    if isinstance(outcome, Released):
        return outcome
    if isinstance(outcome, Retried) or job.claimed.attempt < job.claimed.max_attempts:
        return Retried(outcome.delay if isinstance(outcome, Retried) else 0.0, error)  # type: ignore[arg-type]
    return Failed(error)  # type: ignore[arg-type]


def _attempt(database: Database, queue: Queue, results: Sequence[Result]) -> bool:
    try:
        with database.transaction() as conn:
            changed = write(conn, queue, results)
    except Exception as error:
        if not is_hopeless(error):
            raise
        log.warning("%d results could not be written: %s", len(results), first_line(error))
        return False
    report(results, changed)
    return True


def _fail(conn: Connection, queue: Queue, job: RunningJob, outcome: Failed) -> bool:
    build: Callable[..., object] = queue.build_failure_job
    result = store.fail(conn, queue.tables, job=job, error=outcome.error, build_failure_job=build)  # type: ignore[arg-type]
    report_failure_job(job.id, job.claimed.name, result)
    return result.changed


def report_failure_job(job_id: str, name: str | None, result: store.FailResult) -> None:
    if result.failure_job_error:
        log.error("job %s (%s) failed, and its failure job was not added: %s", job_id, name, result.failure_job_error)


def _retry(job: RunningJob, outcome: Retried) -> store.RetryWrite:
    return store.RetryWrite(job.id, job.lock_token, outcome.delay, outcome.error, job.mutex_keys)


def _release(job: RunningJob, outcome: Released) -> store.ReleaseWrite:
    return store.ReleaseWrite(job.id, job.lock_token, outcome.delay, outcome.linger, job.mutex_keys)
