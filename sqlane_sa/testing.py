"""For tests and one-off scripts: run everything that is due, here and now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.util.concurrency import in_greenlet

from sqlane_sa import store
from sqlane_sa.handles import in_autocommit
from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import AutocommitError, DefinitionError, HandleError, shown
from sqlane_sa.values.ids import new_id
from sqlane_sa.values.outcome import Completed, Failed, Outcome, Released, Retried
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.inline import call
from sqlane_sa.worker.options import served
from sqlane_sa.worker.outcomes import write
from sqlane_sa.worker.running import RunningJob
from sqlane_sa.worker.transactions import read_committed

LEASE = 3600.0
BATCH = 100
FRESH = 1.0
"""Seconds for which candidates count as found just now: other processes move jobs too."""
WINDOW, NARROW_WINDOW = 500, 10
"""Of jobs with keys, each of which is checked: behind a few keys most of them cannot start, and walking over the keys
is the shorter way."""


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
    its result was written. Timeouts are not enforced. A KeyboardInterrupt releases the job it hits and ends the drain.

    Raises `HandleError` for an async connection or engine (use `await conn.run_sync(drain, queue)`), `AutocommitError`
    for a connection without a transaction, and `DefinitionError` for options.
    """
    transaction = _transaction_of(conn_or_engine)
    run = _Drain(transaction, queue, served(queue, names), include_delayed, raise_errors)
    most = _checked_limit(limit)
    while most is None or run.runs < most:
        if not run.round(BATCH if most is None else min(BATCH, most - run.runs)):
            break
    return run.result()


def _checked_limit(limit: object) -> int | None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise DefinitionError(
            f"limit={shown(limit)} is no number of jobs; give an int, or None for no limit", option="limit", value=limit
        )
    return limit


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
        self._execution = Execution(queue, transaction, transaction, UNLIMITED)
        self._counts = {"completed": 0, "retried": 0, "failed": 0, "released": 0}
        self._released: set[str] = set()
        self._window = WINDOW

    @property
    def runs(self) -> int:
        return sum(self._counts.values())

    def round(self, limit: int) -> bool:
        """Look for jobs that can start and run them; whether there were any.

        One is claimed when it is its turn: nothing waits as "running" for an hour if this process dies meanwhile.
        """
        before = self.runs
        end = time.monotonic() + FRESH
        for id_ in self._find(limit):
            job = self._claim(id_)
            if job is not None:
                self._run(job)
                if time.monotonic() > end:
                    break
        return self.runs > before

    def result(self) -> DrainResult:
        with self._transaction() as conn:
            stats = store.stats(conn, self._queue.tables)
        remaining = sum(one.pending for name, one in stats.items() if name in self._names)
        return DrainResult(**self._counts, remaining=remaining)

    def _find(self, limit: int) -> list[str]:
        with self._transaction() as conn:
            if self._include_delayed:
                store.make_due(conn, self._queue.tables, names=self._names)
            # The released ones come first in line, perhaps; room for others behind them.
            limits = dict.fromkeys(self._names, limit + len(self._released))
            found = store.find_candidates(conn, self._queue.tables, limits_by_name=limits, window=self._window)
        self._window = WINDOW if len(found) >= NARROW_WINDOW else NARROW_WINDOW
        return [id_ for id_ in found if id_ not in self._released][:limit]

    def _claim(self, id_: str) -> RunningJob | None:
        """None for one that another process has taken since."""
        tables = self._queue.tables
        with self._transaction() as conn:
            claimed = store.claim(
                conn, tables, candidate_ids=[id_], lock_token=new_id(), locked_by="drain", lease=LEASE
            )
            texts = store.read_payload_texts(conn, tables, [id_]) if claimed else {}
        for job in claimed:
            definition = self._queue.definitions[job.name]
            return RunningJob(job._replace(payload_text=texts.get(id_)), definition, time.monotonic(), LEASE)
        return None

    def _run(self, job: RunningJob) -> None:
        outcome: Outcome | None = Released(None)
        interrupt: BaseException | None = None
        try:
            outcome, interrupt = call(self._execution, job)
            self._write(job, outcome)
        except BaseException:
            self._write_at_last(job, outcome)
            raise
        finally:
            if interrupt is not None:
                raise interrupt
        self._count(job, outcome)
        try:
            if self._raise_errors and job.error is not None:
                raise job.error
        finally:
            job.error = None  # its traceback holds the job: kept, both would stay until the garbage collector comes

    def _write(self, job: RunningJob, outcome: Outcome | None) -> None:
        if outcome is not None:
            with self._transaction() as conn:
                write(conn, self._queue, [(job, outcome)])

    def _write_at_last(self, job: RunningJob, outcome: Outcome | None) -> None:
        """The drain ends by an error: the job is not left to its lease where a second connection still serves."""
        for one in (outcome, Released(None)):
            with suppress(Exception):
                self._write(job, one)
                return

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
        return partial(read_committed, target, UNLIMITED)
    if isinstance(target, Connection) and (in_greenlet() or not target.dialect.is_async):
        if in_autocommit(target):
            raise AutocommitError(
                "this connection is in AUTOCOMMIT and has no transaction to stay in; drain an Engine, or a connection "
                'with a transaction, for example engine.execution_options(isolation_level="READ COMMITTED").begin()'
            )
        return partial(_in_callers_transaction, target)
    raise HandleError(
        f"drain takes a Connection or an Engine, and got {_kind(target)}; "
        "of a Session give session.connection(), and on an AsyncConnection: await conn.run_sync(drain, queue)"
    )


def _kind(target: object) -> str:
    own = isinstance(target, Engine | Connection)
    return f"the {type(target).__name__} inside an async one" if own else type(target).__name__


@contextmanager
def _in_callers_transaction(conn: Connection) -> Iterator[Connection]:
    """A savepoint: a handler that fails leaves the caller's transaction as it was before it, and usable."""
    if conn.dialect.is_async and not in_greenlet():
        raise HandleError(
            "in a drain on an async connection, ctx.enqueue works in the handler itself and not in threads or tasks "
            "that it starts: they cannot share the connection; return what to enqueue from them, or drain an Engine"
        )
    with conn.begin_nested():
        yield conn
