"""Stuck jobs: past their timeouts, with handlers that have not returned. They are marked in the database."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import Connection

from sqlane_sa import store
from sqlane_sa.schema import Tables
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.outcomes import is_hopeless, may_pass
from sqlane_sa.worker.running import TIMEOUT, RunningJob, RunningJobs
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

PAUSE = 1.0
"""Seconds until a job whose row was locked is marked again."""


class StuckJobs:
    """Those of this worker that are to be marked. The loop's own; times in monotonic seconds."""

    def __init__(self, database: Database, tables: Tables, jobs: RunningJobs) -> None:
        self._database = database
        self._tables = tables
        self._jobs = jobs
        self._next = 0.0

    def take(self, now: float) -> list[RunningJob]:
        """The jobs to mark now."""
        return self._jobs.take_timed_out() if now >= self._next else []

    def mark(self, conn: Connection, jobs: Sequence[RunningJob]) -> None:
        """A row that was locked (by a renewal, or by the job's own transaction) is marked by a later turn."""
        marked = set(store.mark_timed_out(conn, self._tables, jobs=jobs))
        skipped = [job for job in jobs if job.id not in marked and not job.ended and job.cancelled == TIMEOUT]
        self._jobs.timed_out.extend(skipped)

    def mark_apart(self, jobs: Sequence[RunningJob]) -> None:
        """Each in a transaction of its own: the batch failed for one of them."""
        for job in jobs:
            try:
                with self._database.transaction() as conn:
                    store.wait_briefly(conn)
                    self.mark(conn, [job])
            except Exception as error:
                if may_pass(error):
                    self._jobs.timed_out.append(job)
                    self._next = time.monotonic() + PAUSE
                elif is_hopeless(error):
                    log.warning(
                        "job %s (%s) cannot be marked as stuck: %s", job.id, job.claimed.name, first_line(error)
                    )
                else:
                    raise
