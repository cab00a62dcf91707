"""The heartbeat: renews the leases of all jobs of the process, on a fixed schedule and a connection of its own."""

from __future__ import annotations

import logging
import time

from sqlane_sa import store
from sqlane_sa.schema import Tables
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.outcomes import is_hopeless, may_pass
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs

log = logging.getLogger("sqlane_sa.worker")


MAX_TRIES = 25
"""Failed tries until it is plain that the fault is not in single rows."""


class Heartbeat:
    """Renews every lease / 3, so that two beats may fail before a lease ends. The connection is kept while there is
    something to renew."""

    def __init__(self, database: Database, tables: Tables, jobs: RunningJobs, lease: float) -> None:
        self._database = database
        self._tables = tables
        self._jobs = jobs
        self._lease = lease
        self._interval = lease / 3
        self._next = time.monotonic() + self._interval

    def run_once(self) -> float:
        """Renew when a beat is due; seconds until the next. After an error the same beat is tried again."""
        now = time.monotonic()
        if now >= self._next:
            self.renew()
            while self._next <= now:
                self._next += self._interval
        return max(0.0, self._next - time.monotonic())

    def renew(self) -> None:
        jobs = [job for job in self._jobs.snapshot() if job.cancelled != LEASE_LOST]
        if not jobs:
            self._database.let_go()
            return
        # Taken before the statement: the lease that counts is at least as long as what is noted here.
        before = time.monotonic()
        renewed = self._renew_around(jobs)
        missing = [job for job in jobs if job.id not in renewed]
        for job in jobs:
            if job.id in renewed:
                job.lease_end = before + self._lease
        if missing:
            self._judge(missing)

    def _renew_around(self, jobs: list[RunningJob]) -> set[str]:
        """The ids renewed: all, or all but those whose rows fail, which are found by halves. Raises the error where no
        half can be written: then it is no matter of single rows."""
        renewed: set[str] = set()
        parts, failures, written = [jobs], 0, False
        while parts:
            part = parts.pop()
            try:
                renewed.update(self._renew_part(part, briefly=failures > 0))
                written = True
            except Exception as error:
                failures += 1
                last = not parts and len(part) == 1
                if not (is_hopeless(error) or may_pass(error)) or not (written or (failures < MAX_TRIES and not last)):
                    raise
                if len(part) > 1:
                    parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        return renewed

    def _renew_part(self, jobs: list[RunningJob], *, briefly: bool) -> list[str]:
        with self._database.transaction() as conn:
            if briefly:
                store.wait_briefly(conn)
            return store.renew_leases(conn, self._tables, jobs=jobs, lease=self._lease)

    def _judge(self, missing: list[RunningJob]) -> None:
        """A row that another transaction had locked still has its lease; one that is no longer ours has not."""
        with self._database.transaction() as conn:
            held = set(store.find_held(conn, self._tables, jobs=missing))
        for job in missing:
            if job.id not in held and not (job.ended or job.completing):
                log.error("job %s (%s): another worker has taken it over; its lease is lost", job.id, job.claimed.name)
                job.cancel(LEASE_LOST)
