"""The timer: timeouts of handlers, and leases that ended because the renewals fail. It needs no database."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from sqlane_sa.worker.running import LEASE_LOST, TIMEOUT, RunningJob, RunningJobs
from sqlane_sa.worker.stacks import stack_of

log = logging.getLogger("sqlane_sa.worker")

LOOK_INTERVAL = 1.0


class Timer:
    """Watches the deadlines of running jobs. It looks at all of them, once a second and when the first deadline is
    over: a job that ends before its deadline costs next to nothing.

    When all `slots` are taken by handlers past their timeout, the worker does nothing any more: that is said, once each
    time, to the log and to `on_all_stuck`.
    """

    def __init__(self, jobs: RunningJobs, slots: int, on_all_stuck: Callable[[str], None] | None = None) -> None:
        self._jobs = jobs
        self._slots = slots
        self._on_all_stuck = on_all_stuck
        self._said = False
        self._next_look = math.inf
        self.wake = threading.Event()

    def watch(self, job: RunningJob) -> None:
        """Called when a job with a timeout starts, with its deadline set."""
        assert job.deadline is not None
        if job.deadline < self._next_look:
            self.wake.set()

    def run_once(self) -> float:
        """Cancel what is over its deadline or its lease, and wait for the next look."""
        self.wake.clear()
        # A job that starts during the look may be missed by it: it asks for another one, whatever its deadline.
        self._next_look = math.inf
        now = time.monotonic()
        running = [job for job in self._jobs.snapshot() if not job.ended]
        next_deadline = self._cancel_overdue(running, now)
        self._look_at_slots(running)
        self._next_look = min(now + LOOK_INTERVAL, next_deadline, self._cancel_unleased(now))
        self.wake.wait(max(0.0, self._next_look - now))
        return 0.0

    def _cancel_overdue(self, running: list[RunningJob], now: float) -> float:
        """The first deadline that is not over."""
        next_deadline = math.inf
        for job in running:
            deadline = job.deadline
            if deadline is None or job.cancelled is not None:
                continue
            if deadline > now:
                next_deadline = min(next_deadline, deadline)
            else:
                self._cancel(job)
        return next_deadline

    def _cancel(self, job: RunningJob) -> None:
        job.stack = stack_of(job)  # before an async handler is on its way out
        job.cancel(TIMEOUT)
        self._jobs.mark_timed_out(job)
        if not job.definition.is_async:
            log.warning(
                "job %s (%s) is past its timeout of %g s; its slot and keys are held until its handler returns",
                job.id,
                job.claimed.name,
                job.definition.timeout,
            )

    def _look_at_slots(self, running: list[RunningJob]) -> None:
        stuck = sum(job.cancelled == TIMEOUT and not job.ended for job in running)
        if stuck < self._slots:
            self._said = False
        elif not self._said:
            self._said = True
            message = f"{stuck} of {self._slots} slots are taken by handlers past their timeout; nothing else can start"
            log.error("%s", message)
            if self._on_all_stuck:
                self._on_all_stuck(message)

    def _cancel_unleased(self, now: float) -> float:
        """When the next lease ends, if it is not renewed. Of a job that has ended only its result is left, and whether
        that counts is for the fences to decide: it may have waited for an outage to end."""
        next_end = math.inf
        for job in self._jobs.snapshot():
            if job.cancelled == LEASE_LOST or job.ended:
                continue
            if job.lease_end > now:
                next_end = min(next_end, job.lease_end)
            else:
                log.error("job %s (%s): not renewed for a whole lease; its lease is lost", job.id, job.claimed.name)
                job.cancel(LEASE_LOST)
        return next_end
