"""Tally: how many jobs simply ran. Of those that did not, others have spoken already."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from sqlane_sa.values.outcome import Completed
from sqlane_sa.worker.running import LEASE_LOST, Finished

log = logging.getLogger("sqlane_sa.worker")

QUIET = 1.0
"""Seconds without a completion, after which the last ones are said."""
LONGEST = 60.0
"""Seconds after which they are said though they go on."""
PAUSE = 10.0
"""Seconds between two lines at least: jobs that come one by one are not to fill the log."""


class Tally:
    """At INFO a line when completions pause, and each minute while they go on; at DEBUG one for each job. With the
    level off, a batch costs one question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._count = self._total = 0
        self._began = 0.0

    def count(self, done: Sequence[Finished]) -> None:
        """Note a batch whose results are written. Called by any thread."""
        if not log.isEnabledFor(logging.INFO):
            return
        completed = [job for job, outcome in done if _is_completed(outcome) and job.cancelled != LEASE_LOST]
        if log.isEnabledFor(logging.DEBUG):
            for job in completed:
                log.debug("job %s (%s) completed, attempt %d", job.id, job.claimed.name, job.claimed.attempt)
        if completed:
            with self._lock:
                if not self._count:
                    self._began = time.monotonic()
                self._count += len(completed)
                self._news.set()

    def run_once(self) -> float:
        """Wait for completions and until they pause, and say how many there were."""
        self._news.wait()
        seen, ends_at = -1, time.monotonic() + LONGEST
        while self._count != seen and time.monotonic() < ends_at and not self._stopped.is_set():
            seen = self._count
            self._stopped.wait(QUIET)
        self.say()
        return PAUSE

    def say(self) -> None:
        """Say what has not been said yet. Called by any thread."""
        with self._lock:
            self._news.clear()
            count, self._count = self._count, 0
            self._total += count
            total, seconds = self._total, time.monotonic() - self._began
        if count == 1:
            log.info("1 job completed, %s since the start", f"{total:,}")
        elif count:
            log.info("%s jobs completed within %.1f s, %s since the start", f"{count:,}", seconds, f"{total:,}")

    def stop(self) -> None:
        """End the waiting."""
        self._stopped.set()
        self._news.set()


def _is_completed(outcome: object) -> bool:
    return outcome is None or type(outcome) is Completed
