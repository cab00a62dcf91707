"""For tests and one-off scripts: run everything that is due, here and now."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, Engine

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import HandleError
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.outcome import Completed, Failed, Outcome, Retried
from sqlane_sa.worker.context import read_committed
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.options import served
from sqlane_sa.worker.outcomes import write
from sqlane_sa.worker.running import RunningJob

LEASE = 3600.0
BATCH = 100


class DrainResult(NamedTuple):
    """Counts of ends of runs (a job that is retried at once counts in each run); `remaining` are still pending."""

    completed: int
    retried: int
    failed: int
    released: int
    remaining: int


def drain(
    conn_or_engine: Connection | Engine,
    queue: Queue,
    *,
    include_delayed: bool = False,
    names: Iterable[str] | None = None,
    limit: int | None = None,
    raise_errors: bool = False,
) -> DrainResult:
    """Run the due jobs one after the other in this thread until none can start, or `limit` were run.

    On a Connection everything stays in the caller's transaction, jobs enqueued by handlers included; on an Engine each
    step commits. `include_delayed` makes pending jobs due first, retries included, so that a job runs until it ends;
    one that is released is not run again by the same drain. `raise_errors` raises the first handler's exception after
    its result was written. Timeouts are not enforced. Raises `HandleError` for an async connection or engine: use
    `await conn.run_sync(drain, queue)`.
    """
    transaction = _transaction_of(conn_or_engine)
    run = _Drain(transaction, queue, served(queue, names), include_delayed, raise_errors)
    while limit is None or run.runs < limit:
        if not run.round(BATCH if limit is None else min(BATCH, limit - run.runs)):
            break
    return run.result()


class _Drain:
    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        queue: Queue,
        names: tuple[str, ...],
        include_delayed: bool,
        raise_errors: bool,
    ) -> None:
        self._transaction = transaction
        self._queue = queue
        self._names = names
        self._include_delayed = include_delayed
        self._raise_errors = raise_errors
        self._execution = Execution(queue, transaction, transaction)
        self._counts = {"completed": 0, "retried": 0, "failed": 0, "released": 0}
        self._released: set[str] = set()

    @property
    def runs(self) -> int:
        return sum(self._counts.values())

    def round(self, limit: int) -> bool:
        """Claim some jobs and run them; whether there were any."""
        jobs = self._claim(limit)
        for job in jobs:
            self._run(job)
        return bool(jobs)

    def result(self) -> DrainResult:
        with self._transaction() as conn:
            stats = store.stats(conn, self._queue.tables)
        remaining = sum(one.pending for name, one in stats.items() if name in self._names)
        return DrainResult(**self._counts, remaining=remaining)

    def _claim(self, limit: int) -> list[RunningJob]:
        tables = self._queue.tables
        with self._transaction() as conn:
            if self._include_delayed:
                store.make_due(conn, tables, names=self._names)
            # The released ones come first in line, perhaps; room for others behind them.
            limits = dict.fromkeys(self._names, limit + len(self._released))
            found = store.find_candidates(conn, tables, limits_by_name=limits)
            ids = [id_ for id_ in found if id_ not in self._released][:limit]
            claimed = store.claim(conn, tables, candidate_ids=ids, lock_token=new_id(), locked_by="drain", lease=LEASE)
            texts = store.read_payload_texts(conn, tables, [job.id for job in claimed])
        now = time.monotonic()
        definitions = self._queue.definitions
        return [
            RunningJob(job._replace(payload_text=texts.get(job.id)), definitions[job.name], now, LEASE)
            for job in claimed
        ]

    def _run(self, job: RunningJob) -> None:
        outcome = _in_new_loop(self._execution, job) if job.definition.is_async else self._execution.run(job)
        if outcome is not None:
            with self._transaction() as conn:
                write(conn, self._queue, [(job, outcome)])
        self._count(job, outcome)
        if self._raise_errors and job.error is not None:
            raise job.error

    def _count(self, job: RunningJob, outcome: Outcome | None) -> None:
        """An outcome of None was written by the handler's own transaction: completed."""
        if outcome is None or isinstance(outcome, Completed):
            self._counts["completed"] += 1
        elif isinstance(outcome, Retried):
            self._counts["retried"] += 1
        elif isinstance(outcome, Failed):
            self._counts["failed"] += 1
        else:
            self._counts["released"] += 1
            self._released.add(job.id)


def _transaction_of(target: object) -> Callable[[], AbstractContextManager[Connection]]:
    if isinstance(target, Engine) and not target.dialect.is_async:
        return partial(read_committed, target)
    if isinstance(target, Connection):
        return partial(_in_callers_transaction, target)
    raise HandleError(
        f"drain takes a Connection or an Engine, and got {type(target).__name__}; "
        "on an AsyncConnection: await conn.run_sync(drain, queue)"
    )


@contextmanager
def _in_callers_transaction(conn: Connection) -> Iterator[Connection]:
    """A savepoint: a handler that fails leaves the caller's transaction as it was before it, and usable."""
    with conn.begin_nested():
        yield conn


def _in_new_loop(execution: Execution, job: RunningJob) -> Outcome | None:
    """In a thread of its own: this one may have a running loop already."""
    outcomes: list[Outcome | None] = []
    thread = threading.Thread(target=lambda: outcomes.append(asyncio.run(execution.run_async(job))))
    thread.start()
    thread.join()
    return outcomes[0]
