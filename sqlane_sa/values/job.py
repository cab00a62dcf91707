"""Jobs as values: new, enqueued, claimed, read back, failed. Nothing here knows SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A checked job that is ready to insert.

    `payload` is JSON text. `run_at` is aware, or None for the database's time of the insert; `delay_ms` is added to it.
    An `id` of None gets a new one; retentions in ms, None keeps the finished job for ever.
    """

    id: str | None
    name: str
    payload: str
    priority: int
    run_at: datetime | None
    delay_ms: int
    mutex_keys: tuple[str, ...] | None
    max_attempts: int
    max_stalls: int
    failure_job: str | None
    completed_retention_ms: int | None
    failed_retention_ms: int | None
    is_checked: bool = field(init=False, repr=False, compare=False, default=False)
    """Whether `queue.new` made it, which has checked all the others."""


_new = object.__new__
# By the slots themselves: the constructor of a frozen dataclass takes three times as long.
_set_id = NewJob.__dict__["id"].__set__
_set_name = NewJob.__dict__["name"].__set__
_set_payload = NewJob.__dict__["payload"].__set__
_set_priority = NewJob.__dict__["priority"].__set__
_set_run_at = NewJob.__dict__["run_at"].__set__
_set_delay_ms = NewJob.__dict__["delay_ms"].__set__
_set_mutex_keys = NewJob.__dict__["mutex_keys"].__set__
_set_max_attempts = NewJob.__dict__["max_attempts"].__set__
_set_max_stalls = NewJob.__dict__["max_stalls"].__set__
_set_failure_job = NewJob.__dict__["failure_job"].__set__
_set_completed_retention_ms = NewJob.__dict__["completed_retention_ms"].__set__
_set_failed_retention_ms = NewJob.__dict__["failed_retention_ms"].__set__
_set_is_checked = NewJob.__dict__["is_checked"].__set__


def checked_job(
    id: str | None,
    name: str,
    payload: str,
    priority: int,
    run_at: datetime | None,
    delay_ms: int,
    mutex_keys: tuple[str, ...] | None,
    max_attempts: int,
    max_stalls: int,
    failure_job: str | None,
    completed_retention_ms: int | None,
    failed_retention_ms: int | None,
) -> NewJob:
    """A `NewJob` of values that are all checked, with the mark that says so."""
    job = _new(NewJob)
    _set_id(job, id)
    _set_name(job, name)
    _set_payload(job, payload)
    _set_priority(job, priority)
    _set_run_at(job, run_at)
    _set_delay_ms(job, delay_ms)
    _set_mutex_keys(job, mutex_keys)
    _set_max_attempts(job, max_attempts)
    _set_max_stalls(job, max_stalls)
    _set_failure_job(job, failure_job)
    _set_completed_retention_ms(job, completed_retention_ms)
    _set_failed_retention_ms(job, failed_retention_ms)
    _set_is_checked(job, True)
    return job


class Enqueued(NamedTuple):
    """The answer to an enqueue; `created` is False when a job with that id was already there."""

    id: str
    created: bool


class JobLock(NamedTuple):
    """What fences a worker's write: it changes the job only while the token is the one of its claim."""

    id: str
    lock_token: str


class ClaimedJob(NamedTuple):
    """A job that one worker now holds: `attempts` were used before this one, `waited_ms` is how long it was due."""

    id: str
    name: str
    attempts: int
    max_attempts: int
    stalls: int
    max_stalls: int
    mutex_keys: Sequence[str] | None
    failure_job: str | None
    lock_token: str
    enqueued_at: datetime
    waited_ms: float
    priority: int
    run_at: datetime
    payload_text: str | None = None

    @property
    def attempt(self) -> int:
        """The number of the attempt this claim is for, from 1."""
        return self.attempts + 1

    @property
    def lock(self) -> JobLock:
        return JobLock(self.id, self.lock_token)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands in the database, as `queue.get` returns it.

    `payload` is the decoded value; when the stored text cannot be decoded it is None and `payload_error` says why.
    The payload of a completed job is gone: None, without an error.
    """

    id: str
    name: str
    status: str
    priority: int
    run_at: datetime
    attempts: int
    max_attempts: int
    stalls: int
    max_stalls: int
    mutex_keys: tuple[str, ...] | None
    failure_job: str | None
    lock_token: str | None
    locked_by: str | None
    locked_until: datetime | None
    started_at: datetime | None
    timed_out_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    last_error: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    payload: Any
    payload_error: str | None


class NameStats(NamedTuple):
    """Counts of one name's jobs. `due` are among the `pending`, `stuck` among the `running`; the age is in ms."""

    name: str
    pending: int
    due: int
    running: int
    stuck: int
    failed: int
    oldest_due_ms: int | None


class FailedEntry(NamedTuple):
    """A line in the list of failed jobs: `age_ms` since it failed for good, `last_error` as it is stored, most often a
    dict of type, message and traceback."""

    id: str
    name: str
    attempts: int
    max_attempts: int
    stalls: int
    finished_at: datetime | None
    age_ms: int | None
    last_error: Any


@dataclass(frozen=True, slots=True)
class FailedJob:
    """What a failure job is built from: the job that failed for good, its payload and its last error."""

    id: str
    name: str
    payload: Any
    attempt: int
    max_attempts: int
    failure_job: str
    error: dict[str, Any]
