"""The sweeper: recovers stale jobs and deletes what has ended, in small transactions on a connection of its own."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.worker.database import Database
from sqlane_sa.worker.outcomes import is_hopeless, is_locked, report_failure_job
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

BATCH = 1000
MAX_BATCHES = 50
"""Of each kind in one round, so that a long backlog of one does not keep the others waiting for ever."""


class Sweeper:
    """A round begins with the worker itself, so that a worker restarted every few seconds sweeps too."""

    def __init__(self, database: Database, queue: Queue, *, interval: float, lease: float, stall_delay: float) -> None:
        self._database = database
        self._queue = queue
        self._interval = interval
        self._lease = lease
        self._stall_delay = stall_delay
        self._after_key = ""
        self._interrupted_at: str | None = None

    def run_once(self) -> float:
        """One round of everything; seconds until the next, with jitter, so that workers do not sweep in step."""
        locked: Exception | None = None
        for part in (
            self.recover,
            partial(self._repeat, self._sweep_mutexes),
            self._sweep_lines,
            partial(self._repeat, self._delete_expired),
        ):
            try:
                part()
            except Exception as error:
                if not is_locked(error):
                    raise
                locked = error  # what one part waits for does not hold up the others
        if locked is not None:
            raise locked
        return self._interval * random.uniform(0.9, 1.1)

    def recover(self) -> None:
        """Each stale job in a transaction of its own: one that cannot be recovered does not hold up the others, nor
        does one at which the connection was lost, which is tried last the next time."""
        with self._database.transaction() as conn:
            stale = store.find_stale(conn, self._queue.tables, limit=BATCH)
        locked: Exception | None = None
        for id_ in sorted(stale, key=lambda id_: id_ == self._interrupted_at):
            try:
                self._recover_one(id_)
            except Exception as error:
                if is_locked(error):
                    locked = error
                elif is_hopeless(error):
                    log.error("job %s stalled and cannot be recovered: %s", id_, first_line(error))
                else:
                    self._interrupted_at = id_
                    raise
        if locked is not None:
            raise locked

    def _recover_one(self, id_: str) -> None:
        tables = self._queue.tables
        with self._database.transaction() as conn:
            recovery = store.recover_stale(
                conn,
                tables,
                id=id_,
                lease=self._lease,
                stall_delay=self._stall_delay,
                build_failure_job=self._queue.build_failure_job,
            )
            # A sleeping worker has to learn when the job is due again.
            store.wake(conn, tables)
        if recovery.status == "pending":
            log.warning(
                "job %s (%s) of %s stalled (%d); due again in %.1f s",
                id_, recovery.name, recovery.locked_by, recovery.stalls, recovery.delay,
            )  # fmt: skip
        elif recovery.failure is not None:
            log.error(
                "job %s (%s) of %s stalled once too often (%d) and failed for good",
                id_,
                recovery.name,
                recovery.locked_by,
                recovery.stalls,
            )
            report_failure_job(id_, recovery.name, recovery.failure)

    def _repeat(self, batch: Callable[[], int]) -> None:
        for _ in range(MAX_BATCHES):
            if batch() < BATCH:
                return

    def _sweep_mutexes(self) -> int:
        with self._database.transaction() as conn:
            return max(store.sweep_mutexes(conn, self._queue.tables, limit=BATCH))

    def _sweep_lines(self) -> None:
        with self._database.transaction() as conn:
            swept = store.sweep_waits(conn, self._queue.tables, limit=BATCH, after_key=self._after_key)
            store.sweep_sleepers(conn, self._queue.tables)
        self._after_key = swept.after_key

    def _delete_expired(self) -> int:
        with self._database.transaction() as conn:
            return store.delete_expired(conn, self._queue.tables, limit=BATCH)
