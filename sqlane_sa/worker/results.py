"""Results: what has ended here and is the loop's to write; which of it waits for a moment, and which is tried again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlane_sa.queue import Queue
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.late import LateResults
from sqlane_sa.worker.outcomes import Result, write_apart
from sqlane_sa.worker.running import Finished, RunningJob, RunningJobs

GATHERING = 0.01
"""Seconds that a few results may wait to become many, while many come."""


class Results:
    """The loop's own; times in monotonic seconds."""

    def __init__(self, database: Database, queue: Queue, jobs: RunningJobs) -> None:
        self._database = database
        self._queue = queue
        self._jobs = jobs
        self._late = LateResults()
        self._again: list[Result] = []
        self._written: set[RunningJob] = set()
        self._seen_written = 0
        self._few_at = 0.0

    def take(self, now: float, *, many_come: bool, claiming: bool) -> list[Finished]:
        """What to write in this turn. A few results, where `many_come` to the writer in a moment, are not worth a
        statement of their own: the next claim would have to wait for it. A claim takes them along."""
        jobs = self._jobs
        self._again.clear()
        self._written.clear()
        again = self._first_tries(jobs.take_passed_over(), now)
        jobs.gathering = many_come and jobs.writer_ready
        if jobs.gathering and now < self._few_at and not claiming:
            return [*again, *jobs.take_left()]
        self._few_at = now + GATHERING
        return [*again, *jobs.take_for_loop()]

    @property
    def written_beside(self) -> int:
        """How many results the writer has written since they were last counted."""
        return self._jobs.written - self._seen_written

    def count_written_beside(self) -> int:
        news = self.written_beside
        self._seen_written += news
        return news

    def passed_over(self, results: Sequence[Result], now: float) -> None:
        """The rows of these were locked, or are not ours any more: they go with the next batch. A claim that began
        before this worker's own locks what it meets, finds that it was started since, and lets go of it at its end.
        What is passed over a second time is written apart."""
        self._again += self._first_tries(results, now)

    def written(self, results: Sequence[Result]) -> None:
        """Of what the turn has taken, these are committed, whatever becomes of the rest of it."""
        self._written.update(job for job, _ in results)

    def put_back(self, finished: Sequence[Finished], timed_out: Sequence[RunningJob]) -> None:
        """A turn that failed: the next one writes what it had taken. Of what is written by now nothing more is, but
        the next turn forgets it and follows its keys; and what is late has its place."""
        rest = [(job, None if job in self._written else outcome) for job, outcome in finished if job not in self._late]
        self._jobs.put_back(rest, timed_out)

    def _first_tries(self, passed_over: Sequence[Result], now: float) -> list[Result]:
        self._late.add([result for result in passed_over if result[0].passed_over], now)
        first = [result for result in passed_over if not result[0].passed_over]
        for job, _ in first:
            job.passed_over = True
        return first

    def write_apart(self, results: Sequence[Result]) -> None:
        """A batch that failed for one of its rows."""
        locked = write_apart(self._database, self._queue, results) if results else []
        self._late.put(results, locked, time.monotonic())

    def write_late(self) -> list[Finished]:
        """What waits for locks, once it is time; what of it is done. Whatever became of their leases, which nobody can
        renew on a locked row: the fences decide."""
        late = self._late.take(time.monotonic())
        if late:
            self.write_apart(late)
        return self.forget(late)

    @property
    def late_at(self) -> float:
        """When to try again what waits for locks."""
        return self._late.at

    def forget(self, finished: Sequence[Finished]) -> list[Finished]:
        """What a turn has taken is written, but for what waits; what of it is done, and held here no more."""
        waiting = {job for job, _ in self._again}
        done = [one for one in finished if one[0] not in self._late and one[0] not in waiting]
        self._jobs.put_back(self._again, ())
        self._again.clear()
        self._jobs.remove(done)
        return done
