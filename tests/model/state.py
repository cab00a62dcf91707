"""The state of all tables as plain values, and what can be said of it without changing it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from tests.model.rows import Hold, JobRow, Lock, Place, Soon, Time


class State:
    """The state of all tables.

    `removals` are rows of which the database may choose some: (table, keys, how many). `violations` are what the
    invariants in SQL say of a state that was read.
    """

    def __init__(self) -> None:
        self.now = 0
        self.jobs: dict[str, JobRow] = {}
        self.payloads: dict[str, str] = {}
        self.mutexes: dict[str, Hold] = {}
        self.waits: dict[Place, Time] = {}
        self.violations: set[tuple[str, str]] = set()
        self.removals: list[tuple[str, set[Any], int]] = []

    def copy(self) -> Self:
        other = copy.copy(self)
        other.jobs = {id_: copy.copy(job) for id_, job in self.jobs.items()}
        other.mutexes = {key: copy.copy(hold) for key, hold in self.mutexes.items()}
        other.payloads, other.waits, other.removals = dict(self.payloads), dict(self.waits), []
        return other

    def is_due(self, job: JobRow) -> bool:
        return job.status == "pending" and before(job.run_at, self.now)

    def is_busy(self, key: str) -> bool:
        hold = self.mutexes.get(key)
        return hold is not None and not self.has_ended(hold)

    def has_ended(self, hold: Hold) -> bool:
        return hold.held_until is not None and before(hold.held_until, self.now)

    def can_start(self, job: JobRow) -> bool:
        """Due, every key free, and no older job in any of its lines."""
        return (
            self.is_due(job)
            and not any(self.is_busy(key) for key in job.keys)
            and not any(
                other.status == "pending" and set(other.keys) & set(job.keys) and order(other) < order(job)
                for other in self.jobs.values()
            )
        )

    def startable(self, names: Collection[str]) -> list[JobRow]:
        return [job for job in self.jobs.values() if job.job_name in names and self.can_start(job)]

    def candidates(self, limits: Mapping[str, int], keyed_names: Collection[str] | None = None) -> list[str]:
        """By priority, and within one the names in turn; of each name only its best."""
        placed = []
        for name, limit in limits.items():
            usable = keyed_names is None or name in keyed_names
            jobs = [job for job in self.startable({name}) if usable or not job.keys]
            turns: dict[int, int] = {}
            for job in sorted(jobs, key=lambda job: (job.priority, order(job)))[: max(limit, 0)]:
                turns[job.priority] = turns.get(job.priority, 0) + 1
                placed.append((job.priority, turns[job.priority], order(job), job.id))
        return [id_ for *_, id_ in sorted(placed)]

    def keyed_candidates(self, names: Collection[str], n: int, keys: Collection[str] | None = None) -> list[str]:
        """The `n` best of those with keys; or of the lines of these keys."""
        jobs = [job for job in self.startable(set(names)) if job.keys]
        if keys is not None:
            jobs = [job for job in jobs if not set(keys).isdisjoint(job.keys)]
        turns: dict[tuple[str, int], int] = {}
        placed = []
        for job in sorted(jobs, key=lambda job: (job.priority, order(job))):
            turn = turns[job.job_name, job.priority] = turns.get((job.job_name, job.priority), 0) + 1
            placed.append((job.priority, turn, order(job), job.id))
        return [id_ for *_, id_ in sorted(placed)][:n]

    def held(self, lock: Lock) -> JobRow | None:
        job = self.jobs.get(lock.id)
        return job if job and job.status == "running" and job.lock_token == lock.lock_token else None

    def all_held(self, locks: Iterable[Lock]) -> list[JobRow]:
        found = {lock.id: self.held(lock) for lock in locks if self.held(lock)}
        return [job for job in found.values() if job]

    def is_stale(self, job: JobRow) -> bool:
        return job.status == "running" and job.locked_until is not None and before(job.locked_until, self.now)

    def stale(self, limit: int) -> list[str]:
        found = [job for job in self.jobs.values() if self.is_stale(job)]
        return [job.id for job in sorted(found, key=lambda job: (job.locked_until, job.id))][:limit]

    def keys_of(self, lock: Lock) -> list[str]:
        return [
            key for key, hold in self.mutexes.items() if (hold.job_id, hold.lock_token) == (lock.id, lock.lock_token)
        ]

    def orphans(self) -> set[str]:
        """Keys held by a job that does not run under that lock any more."""
        return {
            key
            for key, hold in self.mutexes.items()
            if hold.held_until is None and not self.held(Lock(hold.job_id, hold.lock_token))
        }

    def lost_places(self) -> set[Place]:
        """Places in lines whose job is not pending there."""
        pending = {
            Place(key, job.id): job.run_at for job in self.jobs.values() if job.status == "pending" for key in job.keys
        }
        return {place for place, run_at in self.waits.items() if pending.get(place) != run_at}


def before(time: Time, now: int) -> bool:
    """Whether the time is reached. What a step has just set counts as the start of the step."""
    return (time.after if isinstance(time, Soon) else time - now) <= 0


def order(job: JobRow) -> tuple[Any, str]:
    """The order of a line. A `Soon` comes after every time that was reached before it."""
    return (job.run_at if isinstance(job.run_at, int) else 2**62 + job.run_at.after, job.id)
