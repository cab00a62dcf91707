"""The options of a new job, checked before any SQL; a wrong one is an `InvalidJobError` at its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlane_sa.values.duration import MAX_SECONDS, seconds, to_ms
from sqlane_sa.values.errors import InvalidJobError, PayloadError, shown
from sqlane_sa.values.job import NewJob
from sqlane_sa.values.payload import MAX_BYTES, decode, encode
from sqlane_sa.values.text import ID_CHARS, NAME_CHARS, check_keys, check_text

MAX_COUNT = 100_000
MIN_PRIORITY, MAX_PRIORITY = -32768, 32767

AWARE = "an aware datetime, for example datetime.now(UTC)"

_FIRST, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
"""Of `run_at`. Outside of them no driver is sure to read a time back in every time zone, and no worker the job."""


def check_integer(value: object, place: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidJobError(f"{shown(value)} is not an integer from {least} to {most}", place=place, value=value)
    return int(value)


def check_priority(value: object) -> int:
    return check_integer(value, "priority", MIN_PRIORITY, MAX_PRIORITY)


def check_max_attempts(value: object) -> int:
    return check_integer(value, "max_attempts", 1, MAX_COUNT)


def check_id(value: object) -> str:
    return check_text(value, "id", max_chars=ID_CHARS, what="an id")


def check_delay(value: float | timedelta | None) -> int:
    """In ms; 0 for None."""
    return 0 if value is None else to_ms(seconds(value, "delay", error=_invalid))


def check_run_at(run_at: object, delay: object) -> datetime | None:
    """An aware datetime, in UTC; None when there is none, and only then a delay."""
    if run_at is None:
        return None
    if delay is not None:
        raise InvalidJobError("run_at and delay exclude each other; give one of them", place="run_at", value=run_at)
    if not isinstance(run_at, datetime):
        message = f"{shown(run_at)} is no datetime; give {AWARE}"
        raise InvalidJobError(message, place="run_at", value=run_at)
    try:
        problem = _problem(run_at)
        if problem is None:
            return run_at.astimezone(UTC)
    except Exception as error:
        problem = f"has a time zone that raised {shown(error)}"
    raise InvalidJobError(f"{shown(run_at)} {problem}", place="run_at", value=run_at)


def _problem(run_at: datetime) -> str | None:
    if run_at.utcoffset() is None:
        return f"is naive: it names no instant; give {AWARE}"
    if not _FIRST <= run_at < _END:
        return "is not in the years 1970 to 9998 of UTC; for a job that is due now leave it out"
    return None


def checked(job: NewJob) -> NewJob:
    """The same job once all it holds is checked; at once where `queue.new` has made it."""
    if job.is_checked:
        return job
    if isinstance(job.mutex_keys, str):
        message = f"{shown(job.mutex_keys)} is one str; a NewJob holds a tuple of keys"
        raise InvalidJobError(message, place="mutex_keys", value=job.mutex_keys)
    delay_ms = check_integer(job.delay_ms, "delay_ms", 0, to_ms(MAX_SECONDS))
    good = replace(
        job,
        id=None if job.id is None else check_id(job.id),
        name=check_text(job.name, "name", max_chars=NAME_CHARS, what="a job name"),
        payload=_payload(job.payload),
        priority=check_priority(job.priority),
        run_at=check_run_at(job.run_at, delay_ms or None),
        delay_ms=delay_ms,
        mutex_keys=check_keys(job.mutex_keys, "mutex_keys"),
        max_attempts=check_max_attempts(job.max_attempts),
        max_stalls=check_integer(job.max_stalls, "max_stalls", 0, MAX_COUNT),
        failure_job=_failure_job(job.failure_job),
        completed_retention_ms=_retention_ms(job.completed_retention_ms, "completed_retention_ms"),
        failed_retention_ms=_retention_ms(job.failed_retention_ms, "failed_retention_ms"),
    )
    return mark_checked(good)


def mark_checked(job: NewJob) -> NewJob:
    """A copy made by dataclasses.replace does not have the mark."""
    object.__setattr__(job, "is_checked", True)
    return job


def _payload(text: object) -> str:
    """Encoded again: Python reads some texts that PostgreSQL does not, such as one with a key twice, first with NaN."""
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        raise PayloadError(f"{shown(text)} is no JSON text of at most 16 MiB", place="payload", value=text)
    try:
        value = decode(text)
    except PayloadError as error:
        message = f"{shown(text)} is no JSON text; give the value itself to queue.new(...)"
        raise PayloadError(message, place="payload", value=text) from error
    return encode(value)


def _failure_job(name: object) -> str | None:
    return None if name is None else check_text(name, "failure_job", max_chars=NAME_CHARS, what="a job name")


def _retention_ms(value: object, place: str) -> int | None:
    return None if value is None else check_integer(value, place, 0, to_ms(MAX_SECONDS))


def _invalid(message: str, option: str, value: object) -> InvalidJobError:
    return InvalidJobError(message, place=option, value=value)
