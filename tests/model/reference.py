"""The store's contract in plain Python: what each operation returns, and what the tables hold after it.

One step after the other, without SQL, locks or indexes. `now` is the database's time before the step; what the step
itself sets is a `Soon`, for which the state read after the step then gives the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlane_sa.store import FailResult, Recovery
from sqlane_sa.values.errors import StalledError
from sqlane_sa.values.failure import describe_error
from sqlane_sa.values.job import FailedJob, NewJob
from tests.model.rows import MS, SECOND, Hold, JobRow, Lock, Place, Soon, Time
from tests.model.state import State, before, order

Builder = Callable[[FailedJob], NewJob | None]
MAX_STALL_DELAY = 3600


def micro(seconds: float) -> int:
    return round(seconds * SECOND)


def retention(ms: int | None) -> Soon | None:
    return None if ms is None else Soon(ms * MS)


class Model(State):
    """The operations: each changes the state as the database does, and returns what the store returns."""

    # Starting and running

    def insert(self, jobs: Sequence[NewJob], ids: Sequence[str]) -> list[tuple[str, bool]]:
        return [(id_, self.insert_one(id_, job)) for id_, job in zip(ids, jobs, strict=True)]

    def insert_one(self, id: str, new: NewJob) -> bool:
        if id in self.jobs:
            return False
        run_at: Time = Soon(new.delay_ms * MS, whole_ms=True)
        if new.run_at is not None:
            run_at = int(new.run_at.timestamp()) * SECOND + new.run_at.microsecond // MS * MS
        job = JobRow(
            id=id,
            job_name=new.name,
            priority=new.priority,
            run_at=run_at,
            mutex_keys=tuple(dict.fromkeys(new.mutex_keys)) if new.mutex_keys else None,
            max_attempts=new.max_attempts,
            max_stalls=new.max_stalls,
            failure_job=new.failure_job,
            completed_retention_ms=new.completed_retention_ms,
            failed_retention_ms=new.failed_retention_ms,
            created_at=Soon(),
            updated_at=Soon(),
        )
        self.jobs[id] = job
        self.payloads[id] = new.payload
        self._queue_up(job)
        return True

    def claim(self, ids: Sequence[str], token: str, by: str, lease: float, take_all: bool = False) -> list[JobRow]:
        """`take_all` is a caller that picks every row: what is busy then shows when the keys are taken."""
        due = [self.jobs[id_] for id_ in ids if id_ in self.jobs and self.is_due(self.jobs[id_])]
        busy = {key for job in due for key in job.keys if self.is_busy(key)}
        taken = set() if take_all else set(busy)
        chosen = []
        for job in due:
            if taken.isdisjoint(job.keys):
                taken.update(job.keys)
                chosen.append(job)
        for job in chosen:
            self._take_keys(job, token, lost=not busy.isdisjoint(job.keys))
        return [self._start(job, token, by, lease) for job in chosen if busy.isdisjoint(job.keys)]

    def claim_plain(
        self,
        lanes: Sequence[tuple[str, int, int]],
        token: str,
        by: str,
        lease: float,
        after: Mapping[tuple[str, int], tuple[int, str]] = MappingProxyType({}),
    ) -> list[JobRow]:
        chosen: list[JobRow] = []
        for name, priority, limit in lanes:
            lane = [
                job
                for job in self.jobs.values()
                if self.is_due(job) and not job.keys and (job.job_name, job.priority) == (name, priority)
            ]
            if (name, priority) in after:
                lane = [job for job in lane if order(job) > after[name, priority]]
            chosen += sorted(lane, key=order)[:limit]
        started = [self._start(job, token, by, lease) for job in chosen]
        return sorted(started, key=lambda job: (job.priority, order(job)))

    def complete_and_claim(
        self,
        locks: Sequence[Lock],
        lanes: Sequence[tuple[str, int, int]],
        after: Mapping[tuple[str, int], tuple[int, str]],
        token: str,
        by: str,
        lease: float,
    ) -> tuple[list[str], list[JobRow]]:
        """The ids completed, and the jobs started: those after the place of their lane."""
        return self.complete_unlocked(locks), self.claim_plain(lanes, token, by, lease, after)

    def _take_keys(self, job: JobRow, token: str, lost: bool) -> None:
        for key in job.keys:
            if self.is_busy(key):
                continue
            # A set that another claim got a part of is put back, and an ended linger in it goes with it.
            self.mutexes.pop(key, None)
            if not lost:
                self.mutexes[key] = Hold(job.id, token, Soon())

    def _start(self, job: JobRow, token: str, by: str, lease: float) -> JobRow:
        job.status, job.lock_token, job.locked_by = "running", token, by
        job.locked_until, job.started_at, job.timed_out_at = Soon(micro(lease)), Soon(), None
        job.updated_at = Soon()
        for key in job.keys:
            self.waits.pop(Place(key, job.id), None)
        return job

    def renew(self, locks: Iterable[Lock], lease: float) -> list[str]:
        held = self.all_held(locks)
        for job in held:
            job.locked_until = Soon(micro(lease))
        return sorted(job.id for job in held)

    def mark(self, locks: Iterable[Lock]) -> list[str]:
        fresh = [job for job in self.all_held(locks) if job.timed_out_at is None]
        for job in fresh:
            job.timed_out_at = job.updated_at = Soon()
        return sorted(job.id for job in fresh)

    # Ends

    def complete(self, locks: Sequence[Lock]) -> list[str]:
        completed = self.complete_unlocked(locks)
        self.free(locks)
        return completed

    def complete_unlocked(self, locks: Sequence[Lock]) -> list[str]:
        """Of jobs without keys."""
        held = self.all_held(locks)
        for job in held:
            self.payloads.pop(job.id, None)
            self._finish(job, "completed", job.completed_retention_ms)
            job.attempts += 1
        return sorted(job.id for job in held)

    def complete_keyed(self, locks: Sequence[Lock]) -> list[str]:
        """What is not ours any more keeps what it holds."""
        completed = [lock for lock in locks if self.held(lock)]
        self.complete_unlocked(completed)
        self.free(completed)
        return sorted({lock.id for lock in completed})

    def retry(self, lock: Lock, delay: float, error: dict[str, Any] | None) -> bool:
        job = self.held(lock)
        if job:
            self._back(job, delay)
            job.attempts, job.last_error = job.attempts + 1, error
        self.free([lock])
        return job is not None

    def release(self, lock: Lock, delay: float | None, linger: float | None) -> bool:
        job = self.held(lock)
        if job:
            self._back(job, delay)
        if linger:
            self.linger(lock, linger)
        else:
            self.free([lock])
        return job is not None

    def fail(self, lock: Lock, error: dict[str, Any], build: Builder | None) -> FailResult:
        job = self.held(lock)
        result = FailResult(False)
        if job:
            job.attempts += 1
            result = self._fail(job, error, build)
        self.free([lock])
        return result

    def recover(self, id: str, lease: float, stall_delay: float, build: Builder | None) -> Recovery:
        job = self.jobs.get(id)
        if job is None or not self.is_stale(job):
            return Recovery(id, None)
        by, stalls = job.locked_by, job.stalls
        self.linger(Lock(id, job.lock_token or ""), lease)
        error = describe_error(StalledError(stalls=stalls + 1, max_stalls=job.max_stalls))
        job.stalls += 1
        if stalls >= job.max_stalls:
            return Recovery(id, "failed", job.stalls, 0.0, self._fail(job, error, build), job.job_name, by)
        delay = min(stall_delay * 2.0**stalls, MAX_STALL_DELAY)
        self._back(job, delay)
        job.last_error = error
        return Recovery(id, "pending", job.stalls, delay, None, job.job_name, by)

    def free(self, locks: Iterable[Lock]) -> None:
        for lock in locks:
            for key in self.keys_of(lock):
                del self.mutexes[key]

    def linger(self, lock: Lock, seconds: float) -> None:
        for key in self.keys_of(lock):
            if self.mutexes[key].held_until is None:
                self.mutexes[key].held_until = Soon(micro(seconds))

    def _unlock(self, job: JobRow) -> None:
        job.lock_token = job.locked_by = job.locked_until = job.timed_out_at = None
        job.updated_at = Soon()

    def _back(self, job: JobRow, delay: float | None) -> None:
        self._unlock(job)
        job.status, job.started_at = "pending", None
        if delay is not None:
            job.run_at = Soon(micro(delay), whole_ms=True)
        self._queue_up(job)

    def _queue_up(self, job: JobRow) -> None:
        for key in job.keys:
            self.waits[Place(key, job.id)] = job.run_at

    def _finish(self, job: JobRow, status: str, kept_ms: int | None) -> None:
        self._unlock(job)
        job.status, job.finished_at, job.expires_at = status, Soon(), retention(kept_ms)
        if kept_ms == 0:
            del self.jobs[job.id]
            self.payloads.pop(job.id, None)

    def _fail(self, job: JobRow, error: dict[str, Any], build: Builder | None) -> FailResult:
        payload = self.payloads.get(job.id)
        self._finish(job, "failed", job.failed_retention_ms)
        job.last_error = error
        if not (job.failure_job and build):
            return FailResult(True)
        told = FailedJob(
            job.id,
            job.job_name,
            payload and json.loads(payload),
            job.attempts,
            job.max_attempts,
            job.failure_job,
            error,
        )
        return self._add_failure_job(build, told)

    def _add_failure_job(self, build: Builder, told: FailedJob) -> FailResult:
        try:
            new = build(told)
        except Exception as problem:
            return FailResult(True, None, f"{type(problem).__name__}: {problem}")
        if new is None:
            return FailResult(True)
        if new.priority >= 2**15:
            return FailResult(True, None, "refused by the database")
        assert new.id is not None
        self.insert_one(new.id, new)
        return FailResult(True, new.id)

    # Sweeps and time

    def sweep_mutexes(self, limit: int) -> tuple[int, int]:
        ended = {key for key, hold in self.mutexes.items() if self.has_ended(hold)}
        return self._remove("mutexes", ended, limit), self._remove("mutexes", self.orphans(), limit)

    def sweep_waits(self) -> int:
        lost = self.lost_places()
        return self._remove("waits", lost, len(lost))

    def delete_expired(self, limit: int) -> int:
        expired = {
            job.id for job in self.jobs.values() if job.expires_at is not None and before(job.expires_at, self.now)
        }
        return self._remove("jobs", expired, limit)

    def _remove(self, table: str, keys: set[Any], limit: int) -> int:
        count = min(limit, len(keys))
        self.removals.append((table, keys, count))
        return count

    def remove_all(self) -> None:
        """Remove what a sweep had to, where there is no database to choose."""
        for table, keys, _ in self.removals:
            for key in keys:
                getattr(self, table).pop(key, None)
        self.removals = []

    def make_due(self, names: Collection[str]) -> int:
        moved = [
            job
            for job in self.jobs.values()
            if job.status == "pending" and job.job_name in names and not before(job.run_at, self.now)
        ]
        for job in moved:
            job.run_at, job.updated_at = Soon(whole_ms=True), Soon()
            self._queue_up(job)
        return len(moved)

    def retry_failed(self, ids: Collection[str]) -> list[str]:
        failed = [self.jobs[id_] for id_ in sorted(set(ids)) if id_ in self.jobs and self.jobs[id_].status == "failed"]
        for job in failed:
            self._back(job, 0)
            job.attempts = job.stalls = 0
            job.finished_at = job.expires_at = None
        return [job.id for job in failed]

    def delete_by_hand(self, id: str) -> None:
        """The row alone: its payload, holds and places stay behind."""
        self.jobs.pop(id, None)
