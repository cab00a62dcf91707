"""The sweeper: recovers stale jobs and deletes what has ended, in small transactions on a connection of its own."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy.exc import DBAPIError

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.outcomes import is_hopeless, may_be_one_rows, may_pass, report_failure_job
from sqlane_sa.worker.running import LEASE_LOST, RunningJobs
from sqlane_sa.worker.service import first_line
from sqlane_sa.worker.undeletable import UndeletableJobs

log = logging.getLogger("sqlane_sa.worker")

BATCH = 1000
MAX_BATCHES = 50
"""Of each kind in one round, so that a long backlog of one does not keep the others waiting for ever."""
QUERY_CANCELED = "57014"
RECOVERED_AT_ONCE = 100
MAX_REFUSED = 5
"""So many expired jobs whose deletion is refused like in an outage, and none that is deleted: it is taken for one."""


class Sweeper:
    """A round begins with the worker itself, so that a worker restarted every few seconds sweeps too."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        jobs: RunningJobs,
        *,
        interval: float,
        lease: float,
        stall_delay: float,
    ) -> None:
        self._database = database
        self._queue = queue
        self._jobs = jobs
        self._interval = interval
        self._lease = lease
        self._stall_delay = stall_delay
        self._limit = BATCH
        self._after_key = ""
        self._interrupted_at: str | None = None
        self._apart = False
        self._undeletable = UndeletableJobs()

    def run_once(self) -> float:
        """One round of everything; seconds until the next, with jitter, so that workers do not sweep in step."""
        locked: Exception | None = None
        self._limit = min(2 * self._limit, BATCH)
        for part in (
            self.recover,
            partial(self._repeat, self._sweep_mutexes),
            self._sweep_lines,
            partial(self._repeat, self._delete_expired),
        ):
            try:
                part()
            except Exception as error:
                if not may_pass(error):
                    raise
                locked = error  # what one part waits for does not hold up the others
        self._undeletable.report()
        if locked is not None:
            raise locked
        return self._interval * random.uniform(0.9, 1.1)

    def recover(self) -> None:
        """Many at once, for when a machine dies they are many. Where that failed, each in a transaction of its own: one
        that cannot be recovered does not hold up the others, nor does one at which the connection was lost, which is
        tried last the next time."""
        with self._database.transaction() as conn:
            stale = store.find_stale(conn, self._queue.tables, limit=BATCH)
        # Results that are about to be written here: their rows were locked past their leases. Whoever else sweeps may
        # take them.
        own = {job.id for job in self._jobs.snapshot() if job.ended and job.cancelled != LEASE_LOST}
        stale = [id_ for id_ in stale if id_ not in own]
        if len(stale) > 1 and not self._apart:
            self._apart = True  # unless it works
            self._recover_together(stale)
        else:
            self._recover_apart(stale)
        self._apart = False

    def _recover_together(self, stale: Sequence[str]) -> None:
        try:
            for start in range(0, len(stale), RECOVERED_AT_ONCE):
                self._recover(stale[start : start + RECOVERED_AT_ONCE])
        except Exception as error:
            if not may_be_one_rows(error):
                raise
            self._recover_apart(stale)

    def _recover_apart(self, stale: Sequence[str]) -> None:
        locked: Exception | None = None
        for id_ in sorted(stale, key=lambda id_: id_ == self._interrupted_at):
            try:
                self._recover([id_])
            except Exception as error:
                if may_pass(error):
                    locked = error
                elif is_hopeless(error):
                    log.error("job %s stalled and cannot be recovered: %s", id_, first_line(error))
                else:
                    self._interrupted_at = id_
                    raise
        if locked is not None:
            raise locked

    def _recover(self, ids: Sequence[str]) -> None:
        tables = self._queue.tables
        with self._database.transaction() as conn:
            recoveries = store.recover_stale_many(
                conn,
                tables,
                ids=ids,
                lease=self._lease,
                stall_delay=self._stall_delay,
                build_failure_job=self._queue.build_failure_job,
            )
            # A sleeping worker has to learn when the jobs are due again.
            store.wake(conn, tables)
        for recovery in recoveries:
            _report(recovery)

    def _repeat(self, batch: Callable[[int], int]) -> None:
        """Batch after batch; smaller ones where the database's statement timeout is too short for these."""
        for _ in range(MAX_BATCHES):
            limit = self._limit
            try:
                if batch(limit) < limit:
                    return
            except DBAPIError as error:
                if sqlstate(error) != QUERY_CANCELED or limit == 1:
                    raise
                self._limit = limit // 2

    def _sweep_mutexes(self, limit: int) -> int:
        with self._database.transaction() as conn:
            return max(store.sweep_mutexes(conn, self._queue.tables, limit=limit))

    def _sweep_lines(self) -> None:
        with self._database.transaction() as conn:
            swept = store.sweep_waits(conn, self._queue.tables, limit=BATCH, after_key=self._after_key)
            store.sweep_sleepers(conn, self._queue.tables)
        self._after_key = swept.after_key

    def _delete_expired(self, limit: int) -> int:
        try:
            return self._delete(limit)
        except DBAPIError as error:
            if not _may_be_one_expired(error):
                raise
        return self._delete_around(limit)

    def _delete_around(self, limit: int) -> int:
        """Of the first `limit`, those that can be deleted, and past the others; how many. By halves up to one of those,
        and in growing steps from it."""
        deleted, looked_at, step = 0, 0, limit
        outage: DBAPIError | None = None
        while looked_at < limit and not (outage and not deleted and looked_at >= MAX_REFUSED):
            step = min(step, limit - looked_at)
            try:
                gone = self._delete(step)
            except DBAPIError as error:
                if not _may_be_one_expired(error):
                    raise
                if step == 1:
                    self._pass_over(error)
                    looked_at += 1
                    outage = outage or (error if may_pass(error) else None)
                step = max(step // 2, 1)
                continue
            deleted += gone
            looked_at += gone
            if gone < step:
                break
            step *= 2
        if outage and not deleted:
            raise outage
        return deleted

    def _delete(self, limit: int) -> int:
        with self._database.transaction() as conn:
            deleted = store.delete_expired(conn, self._queue.tables, limit=limit, after=self._undeletable.last)
        if deleted < limit:
            self._undeletable.came_to_the_end()
        return deleted

    def _pass_over(self, error: DBAPIError) -> None:
        with self._database.transaction() as conn:
            first = store.first_expired(conn, self._queue.tables, after=self._undeletable.last)
        if first is not None:  # else somebody else has deleted it
            self._undeletable.pass_over(first, error, may_pass=may_pass(error))


def _may_be_one_expired(error: DBAPIError) -> bool:
    """Whether one row may be why none was deleted. What took too long were too many, or an outage."""
    return sqlstate(error) != QUERY_CANCELED and may_be_one_rows(error)


def _report(recovery: store.Recovery) -> None:
    if recovery.status == "pending":
        log.warning(
            "job %s (%s) of %s stalled (%d); due again in %.1f s",
            recovery.id, recovery.name, recovery.locked_by, recovery.stalls, recovery.delay,
        )  # fmt: skip
    elif recovery.failure is not None:
        log.error(
            "job %s (%s) of %s stalled once too often (%d) and failed for good",
            recovery.id,
            recovery.name,
            recovery.locked_by,
            recovery.stalls,
        )
        report_failure_job(recovery.id, recovery.name, recovery.failure)
