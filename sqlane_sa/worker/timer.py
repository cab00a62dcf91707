"""The timer: timeouts of handlers, and leases that ended because the renewals fail. It needs no database."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable

from sqlane_sa.worker.running import LEASE_LOST, TIMEOUT, RunningJob, RunningJobs

log = logging.getLogger("sqlane_sa.worker")

LOOK_INTERVAL = 1.0
MIN_CLEARED = 64


class Timer:
    """Watches the deadlines of running jobs; one heap for all of them.

    When all `slots` are taken by handlers past their timeout, the worker does nothing any more: that is said, once each
    time, to the log and to `on_all_stuck`.
    """

    def __init__(self, jobs: RunningJobs, slots: int, on_all_stuck: Callable[[str], None] | None = None) -> None:
        self._jobs = jobs
        self._slots = slots
        self._on_all_stuck = on_all_stuck
        self._said = False
        self._heap: list[tuple[float, int, RunningJob]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        self.wake = threading.Event()

    def watch(self, job: RunningJob) -> None:
        """Called when a job with a timeout starts."""
        assert job.deadline is not None
        with self._lock:
            heapq.heappush(self._heap, (job.deadline, next(self._order), job))
            self._clear()
            first = self._heap[0][2] is job
        if first:
            self.wake.set()

    def _clear(self) -> None:
        """Forget jobs that ended long before their deadlines, and their payloads, once they are most of the heap."""
        if len(self._heap) > max(MIN_CLEARED, 2 * len(self._jobs)):
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)

    def run_once(self) -> float:
        """Cancel what is over its deadline or its lease; seconds until the next look."""
        self.wake.clear()
        now = time.monotonic()
        self._cancel_overdue(now)
        self._look_at_slots()
        looks = [now + LOOK_INTERVAL, self._cancel_unleased(now)]
        with self._lock:
            looks += [entry[0] for entry in self._heap[:1]]
        self.wake.wait(max(0.0, min(looks) - now))
        return 0.0

    def _cancel_overdue(self, now: float) -> None:
        for job in self._overdue(now):
            if not job.ended and job.cancelled is None:
                job.cancel(TIMEOUT)
                self._jobs.mark_timed_out(job)
                if not job.definition.is_async:
                    log.warning(
                        "job %s (%s) is past its timeout of %g s; its slot and keys are held until its handler returns",
                        job.id,
                        job.claimed.name,
                        job.definition.timeout,
                    )

    def _overdue(self, now: float) -> list[RunningJob]:
        due = []
        with self._lock:
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].ended):
                due.append(heapq.heappop(self._heap)[2])
        return due

    def _look_at_slots(self) -> None:
        stuck = sum(job.cancelled == TIMEOUT and not job.ended for job in self._jobs.snapshot())
        if stuck < self._slots:
            self._said = False
        elif not self._said:
            self._said = True
            message = f"{stuck} of {self._slots} slots are taken by handlers past their timeout; nothing else can start"
            log.error("%s", message)
            if self._on_all_stuck:
                self._on_all_stuck(message)

    def _cancel_unleased(self, now: float) -> float:
        """When the next lease ends, if it is not renewed."""
        next_end = math.inf
        for job in self._jobs.snapshot():
            if job.cancelled == LEASE_LOST:
                continue
            if job.lease_end > now:
                next_end = min(next_end, job.lease_end)
            else:
                log.error("job %s (%s): not renewed for a whole lease; its lease is lost", job.id, job.claimed.name)
                job.cancel(LEASE_LOST)
        return next_end
