"""Kept jobs: expired, and the database does not let go of them: a row of the application's refers to one, mostly."""

from __future__ import annotations

import logging
import time

from sqlane_sa.store import Expired
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

KEPT_FOR = 3600.0
"""Seconds until they are tried again."""


class KeptJobs:
    """The sweep goes on behind the last of them: `place` is where to begin."""

    def __init__(self) -> None:
        self.place: Expired | None = None
        self._began = 0.0
        self._new = 0
        self._said = ""

    def came_to_the_end(self) -> None:
        """Nothing is expired behind the place. After a while all is tried from the oldest again."""
        if self._began + KEPT_FOR <= time.monotonic():
            self.place = None

    def pass_over(self, place: Expired, error: Exception) -> None:
        """The job there cannot be deleted."""
        if self.place is None:
            self._began = time.monotonic()
        if not self._new:
            self._said = f"job {place.id}: {first_line(error)}"
        self._new += 1
        self.place = place

    def report(self) -> None:
        """A line for all that this round has met."""
        if self._new:
            log.error("%d expired jobs cannot be deleted and stay for now, the first is %s", self._new, self._said)
            self._new = 0
