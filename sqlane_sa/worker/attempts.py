"""Attempts: what the end of one means for its job."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from sqlane_sa.values.backoff import DEFAULT_BACKOFF, delay_after
from sqlane_sa.values.duration import optional_seconds, seconds
from sqlane_sa.values.errors import AttemptsExhaustedError, HandlerExitError, JobTimeoutError, SqlaneError
from sqlane_sa.values.failure import describe_error
from sqlane_sa.values.outcome import Discard, Failed, Outcome, Released, Retried, Retry, Snooze
from sqlane_sa.worker.running import TIMEOUT, RunningJob

log = logging.getLogger("sqlane_sa.worker")


class NotBegunError(SqlaneError):
    """The database did not answer, or the session was spoilt: no fault of the job. Its handler was not called, or its
    transaction is rolled back."""


def outcome_of(job: RunningJob, error: BaseException) -> Outcome:
    """What an exception that left a handler means for its job."""
    if isinstance(error, NotBegunError):
        return Released(None)
    if isinstance(error, Snooze):
        return Released(seconds(error.delay, "Snooze.delay"))
    if isinstance(error, Discard):
        return _failed(job, _described(job, error))
    if isinstance(error, Retry):
        return attempt_failed(job, error, optional_seconds(error.delay, "Retry.delay"))
    if isinstance(error, AttemptsExhaustedError):
        log.error("job %s (%s): %s", job.id, job.claimed.name, error)
        return Failed(_described(job, error))
    if not isinstance(error, Exception):
        original = error
        error = HandlerExitError(type(original).__name__)
        error.__cause__ = original
    return attempt_failed(job, error)


def attempt_failed(job: RunningJob, error: BaseException, delay: float | None = None) -> Retried | Failed:
    """Pending again after the delay (None: by the definition's backoff), or failed when it was the last attempt."""
    claimed = job.claimed
    described = _described(job, error)
    if claimed.attempt >= claimed.max_attempts:
        return _failed(job, described)
    if delay is None:
        delay = delay_after(job.definition.backoff, claimed.attempt)
    if log.isEnabledFor(logging.INFO):
        log.info(
            "job %s (%s) is to be tried again in %.1f s, attempt %d of %d: %s",
            claimed.id,
            claimed.name,
            delay,
            claimed.attempt,
            claimed.max_attempts,
            # The text of a Retry would say the delay once more.
            described["type"] if isinstance(error, Retry) else _headline(described),
        )
        _show_traceback(job, described)
    return Retried(delay, described)


def left_running(job: RunningJob, lease: float) -> Outcome:
    """The outcome of one whose handler still runs at the end of a shutdown: its keys linger for a lease. Where it has
    overrun its timeout the attempt is used, as if it had returned: else it would start again with each worker, for
    ever."""
    job.expire(time.monotonic())
    if job.cancelled != TIMEOUT:
        return Released(0.0, linger=lease)
    return replace(attempt_failed(job, JobTimeoutError(job.definition.timeout or 0.0)), linger=lease)


def _failed(job: RunningJob, described: dict[str, Any]) -> Failed:
    claimed = job.claimed
    log.warning(
        "job %s (%s) failed for good, attempt %d of %d: %s",
        claimed.id,
        claimed.name,
        claimed.attempt,
        claimed.max_attempts,
        _headline(described),
    )
    _show_traceback(job, described)
    return Failed(described)


def _show_traceback(job: RunningJob, described: dict[str, Any]) -> None:
    if described["traceback"]:
        log.debug("job %s: %s", job.id, described["traceback"])


def _headline(described: dict[str, Any]) -> str:
    """Type and first line: the rest of a driver's message may hold parameters, and is kept with the job."""
    first = described["message"].partition("\n")[0]
    return f"{described['type']}: {first}"[:500]


def attempt_lost(job: RunningJob, broken: BaseException) -> Retried | Failed:
    """For an exception that is no use, such as a Snooze without its delay: a failed attempt, and what is wrong."""
    described = _described(job, broken)
    log.error("job %s (%s): its handler's exception is broken: %s", job.id, job.claimed.name, _headline(described))
    if job.claimed.attempt >= job.claimed.max_attempts:
        return Failed(described)
    return Retried(DEFAULT_BACKOFF(job.claimed.attempt), described)


def _described(job: RunningJob, error: BaseException) -> dict[str, Any]:
    stack = job.stack if isinstance(error, JobTimeoutError) else ""
    return describe_error(error, attempt=job.claimed.attempt, stack=stack)
