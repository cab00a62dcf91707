"""The heartbeat: renews the leases of all jobs of the process, on a fixed schedule and a connection of its own."""

from __future__ import annotations

import logging
import time

from sqlane_sa import store
from sqlane_sa.schema import Tables
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs

log = logging.getLogger("sqlane_sa.worker")


class Heartbeat:
    """Renews every lease / 3, so that two beats may fail before a lease ends."""

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
            return
        # Taken before the statement: the lease that counts is at least as long as what is noted here.
        before = time.monotonic()
        with self._database.transaction() as conn:
            renewed = set(store.renew_leases(conn, self._tables, jobs=jobs, lease=self._lease))
        missing = [job for job in jobs if job.id not in renewed]
        for job in jobs:
            if job.id in renewed:
                job.lease_end = before + self._lease
        if missing:
            self._judge(missing)

    def _judge(self, missing: list[RunningJob]) -> None:
        """A row that another transaction had locked still has its lease; one that is no longer ours has not."""
        with self._database.transaction() as conn:
            held = set(store.find_held(conn, self._tables, jobs=missing))
        for job in missing:
            if job.id not in held and not (job.ended or job.completing):
                log.error("job %s (%s): another worker has taken it over; its lease is lost", job.id, job.claimed.name)
                job.cancel(LEASE_LOST)
