"""The tables of a queue as plain values: every time is an integer, microseconds since 1970 by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

MS = 1000
SECOND = 1_000_000


@dataclass(frozen=True)
class Soon:
    """A time that the database sets within a step: `after` microseconds from then; `whole_ms` when it is cut to one."""

    after: int = 0
    whole_ms: bool = False

    def fits(self, value: Any, start: int, end: int) -> bool:
        if not isinstance(value, int) or (self.whole_ms and value % MS):
            return False
        return start + self.after - (MS if self.whole_ms else 0) <= value <= end + self.after


Time: TypeAlias = int | Soon


@dataclass
class JobRow:
    """A row of `jobs`. A time that a step has set is a `Soon` until the step has been compared with the database."""

    id: str
    job_name: str
    priority: int
    run_at: Time
    mutex_keys: tuple[str, ...] | None
    max_attempts: int
    max_stalls: int
    failure_job: str | None
    completed_retention_ms: int | None
    failed_retention_ms: int | None
    created_at: Time
    updated_at: Time
    status: str = "pending"
    attempts: int = 0
    stalls: int = 0
    lock_token: str | None = None
    locked_by: str | None = None
    locked_until: Time | None = None
    started_at: Time | None = None
    timed_out_at: Time | None = None
    finished_at: Time | None = None
    expires_at: Time | None = None
    last_error: dict[str, Any] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return self.mutex_keys or ()


@dataclass
class Hold:
    """A row of `mutexes`; it lingers when `held_until` is set."""

    job_id: str
    lock_token: str
    created_at: Time
    held_until: Time | None = None


class Lock(NamedTuple):
    """What a worker writes with. A claimed job knows its keys; of a bare lock they are looked for."""

    id: str
    lock_token: str
    mutex_keys: tuple[str, ...] | None = ("?",)


class Place(NamedTuple):
    """The key of a row of `waits`, which has a `run_at` too."""

    mutex_key: str
    job_id: str


TIMES = tuple(field.name for field in fields(JobRow) if "Time" in str(field.type))
