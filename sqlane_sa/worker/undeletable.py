"""Undeletable jobs: expired, and the database refuses to delete them, mostly for a row of the application's."""

from __future__ import annotations

import logging
import time

from sqlane_sa.store import ExpiredJob
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

RETRY_AFTER, RETRY_SOON_AFTER = 3600.0, 60.0
"""Seconds until they are all tried again; and where what was in the way of one may end by itself."""


class UndeletableJobs:
    """The sweep goes on behind the last of them, `last`, so that they keep no others from being deleted."""

    def __init__(self) -> None:
        self.last: ExpiredJob | None = None
        self._began = 0.0
        self._soon = False
        self._new = 0
        self._said = ""

    def came_to_the_end(self) -> None:
        """Nothing is expired behind the last. After a while the sweep begins at the oldest again."""
        if self._began + (RETRY_SOON_AFTER if self._soon else RETRY_AFTER) <= time.monotonic():
            self.last = None

    def pass_over(self, job: ExpiredJob, error: Exception, *, may_pass: bool) -> None:
        """This one cannot be deleted; whether it `may_pass`."""
        if self.last is None:
            self._began, self._soon = time.monotonic(), False
        self._soon = self._soon or may_pass
        if not self._new:
            self._said = f"job {job.id}: {first_line(error)}"
        self._new += 1
        self.last = job

    def report(self) -> None:
        """A line for all that this round has met."""
        if self._new:
            log.error("expired jobs cannot be deleted and stay for now: %d, the first is %s", self._new, self._said)
            self._new = 0
