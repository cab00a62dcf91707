"""The one place that calls user code. Whatever a handler does, a small value comes back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqlane_sa import store
from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import AttemptsExhaustedError, JobTimeoutError, PayloadError, SqlaneError
from sqlane_sa.values.outcome import Completed, Outcome, Released
from sqlane_sa.values.payload import decode
from sqlane_sa.worker.attempts import NotBegunError, attempt_failed, attempt_lost, outcome_of
from sqlane_sa.worker.context import JobContext
from sqlane_sa.worker.deadlines import Deadlines
from sqlane_sa.worker.fork import end_if_child
from sqlane_sa.worker.handler_engine import HandlerEngine, StatementsLostError
from sqlane_sa.worker.running import LEASE_LOST, SHUTDOWN, TIMEOUT, RunningJob
from sqlane_sa.worker.service import first_line
from sqlane_sa.worker.transactions import Transaction, only_ours

log = logging.getLogger("sqlane_sa.worker")

COMPLETED = Completed()
NOT_BEGUN_PAUSE = 1.0
UNREAD = "its payload could not be read"
READERS = 4
"""Threads that read large payloads for `async def` handlers."""
LARGE_TEXT = 1000
"""Characters of a payload that are not kept beside its value until the result is written."""


class LeaseLostError(SqlaneError):
    """The job was taken over by another worker before its transaction could complete it."""


class Execution:
    """Runs handlers.

    `transaction` opens what a transactional one runs in, and what `ctx.enqueue` writes in; `reading` opens what a
    payload that was too large for the claim is read in.
    """

    def __init__(self, queue: Queue, transaction: Transaction, reading: Transaction, deadlines: Deadlines) -> None:
        self._queue = queue
        self._transaction = transaction
        self._reading = reading
        self._deadlines = deadlines
        self._refused = False
        self._process = os.getpid()
        # Not the event loop's own, which handlers may fill, replace or shut down. Its threads are made when it is first
        # used, and end when nobody refers to it any more.
        self._readers = ThreadPoolExecutor(READERS, "sqlane-payload")

    def run(self, job: RunningJob) -> Outcome | None:
        """Call a `def` handler; None when its own transaction has completed the job, or its lease is over."""
        if job.cancelled is not None:
            return _not_started(job)
        try:
            payload = self._payload(job, self._text(job))
            if job.definition.transactional:
                self._run_transactional(job, payload)
                return None
            self._call_def(job, payload, None)
        except BaseException as error:
            return self._settle(job, error)
        return self._settle(job, None)

    async def run_async(self, job: RunningJob) -> Outcome | None:
        """Await an `async def` handler; None when the lease is over."""
        if job.cancelled is not None:
            return _not_started(job)
        try:
            text = job.claimed.payload_text
            if text is None:
                text = await self._read(job)
            await self._call_async(job, self._payload(job, text))
        except BaseException as error:
            return self._settle(job, error)
        return self._settle(job, None)

    async def _read(self, job: RunningJob) -> str | None:
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._readers, self._text, job)
        except RuntimeError as error:  # the system's limit of threads; or the worker has stopped, and waits for nobody
            self._say_not_begun(job, UNREAD, error)
            await asyncio.sleep(NOT_BEGUN_PAUSE)
            raise NotBegunError(UNREAD) from error
        return await reading

    def stop(self) -> None:
        """Let the threads end that read payloads, once they have read what waits."""
        self._readers.shutdown(wait=False)

    def _text(self, job: RunningJob) -> str | None:
        if job.claimed.payload_text is not None:
            return job.claimed.payload_text
        try:
            with self._deadlines.limit(), self._reading() as conn:
                return store.read_payload_texts(conn, self._queue.tables, [job.id]).get(job.id)
        except (DBAPIError, OSError) as error:
            raise self._not_begun(job, UNREAD, error) from error

    def _payload(self, job: RunningJob, text: str | None) -> Any:
        claimed = job.claimed
        if claimed.attempts >= claimed.max_attempts:
            raise AttemptsExhaustedError(claimed.attempts, claimed.max_attempts)
        if text is None:
            raise PayloadError("the payload of this job is missing", place="payload")
        payload = decode(text)
        if len(text) > LARGE_TEXT:
            job.claimed = claimed._replace(payload_text=None)
        return payload

    def _call(self, job: RunningJob, payload: Any, context: JobContext | None) -> Any:
        handler = job.definition.handler
        assert handler is not None
        if not job.definition.wants_context:
            return handler(payload)
        return handler(payload, context or JobContext(job, self._queue, self._transaction, self._deadlines))

    def _call_def(self, job: RunningJob, payload: Any, context: JobContext | None) -> None:
        try:
            result = self._call(job, payload, context)
        except BaseException as error:
            end_if_child(self._process, error)
            raise
        end_if_child(self._process)
        if result is not None:
            _refuse_unrun(result, "define it with async def")

    async def _call_async(self, job: RunningJob, payload: Any) -> None:
        try:
            result = await self._call(job, payload, None)
        except BaseException as error:
            end_if_child(self._process, error)
            raise
        end_if_child(self._process)
        if result is not None:
            _refuse_unrun(result, "await it")

    def _run_transactional(self, job: RunningJob, payload: Any) -> None:
        with ExitStack() as ending, ExitStack() as stack:
            conn = self._begin(job, stack)
            context = JobContext(job, self._queue, self._transaction, self._deadlines, conn)
            with only_ours(conn):
                try:
                    self._call_def(job, payload, context)
                    context.commit_session()
                finally:
                    context.close_session()
            job.expire(time.monotonic())
            if job.cancelled == TIMEOUT:
                raise JobTimeoutError(job.definition.timeout or 0.0)
            job.completing = True
            ending.enter_context(self._deadlines.limit(conn))  # until the commit is answered
            if job.cancelled == LEASE_LOST or not self._complete(conn, job):
                raise LeaseLostError("the lease was lost; the handler's transaction is rolled back")

    def _complete(self, conn: Connection, job: RunningJob) -> bool:
        """Whether the job still ran under its lock."""
        tables, idle_limit = self._queue.tables, self._deadlines.idle_limit
        if not isinstance(conn.engine, HandlerEngine):
            return bool(store.complete(conn, tables, jobs=[job], idle_limit=idle_limit))
        try:
            return conn.engine.complete_and_commit(conn, tables, job.claimed, idle_limit)
        except StatementsLostError as error:
            raise self._not_begun(job, "its session has lost its prepared statements", error) from error

    def _begin(self, job: RunningJob, stack: ExitStack) -> Connection:
        try:
            conn = stack.enter_context(self._transaction())
        except Exception as error:  # also those of the application's creator and listeners
            raise self._not_begun(job, "its transaction could not be opened", error) from error
        self._refused = False
        return conn

    def _not_begun(self, job: RunningJob, what: str, error: Exception) -> NotBegunError:
        """After a pause, with the slot and the keys held: the job keeps its place in their lines, and is not claimed
        again at once."""
        self._say_not_begun(job, what, error)
        job.event.wait(NOT_BEGUN_PAUSE)
        return NotBegunError(what)

    def _say_not_begun(self, job: RunningJob, what: str, error: Exception) -> None:
        """Said once, until a transaction can be opened."""
        level = logging.DEBUG if self._refused else logging.WARNING
        self._refused = True
        log.log(level, "job %s (%s) is released: %s: %s", job.id, job.claimed.name, what, first_line(error))

    def _settle(self, job: RunningJob, error: BaseException | None) -> Outcome | None:
        """The outcome, also where the exception that left the handler cannot even be looked at."""
        try:
            if job.deadline is not None:
                job.expire(time.monotonic())
            return self._outcome(job, error)
        except BaseException as broken:
            return attempt_lost(job, broken)

    def _outcome(self, job: RunningJob, error: BaseException | None) -> Outcome | None:
        if error is None and job.cancelled is None:
            return COMPLETED
        if job.cancelled == LEASE_LOST:
            return None
        if job.cancelled == TIMEOUT:
            # However the handler ended: its result came too late, and a swallowed cancellation is no success.
            late = JobTimeoutError(job.definition.timeout or 0.0)
            late.__cause__ = None if isinstance(error, asyncio.CancelledError | JobTimeoutError) else error
            return attempt_failed(job, late)
        if error is None:
            return COMPLETED
        job.error = error
        if job.cancelled == SHUTDOWN and isinstance(error, asyncio.CancelledError):
            return Released(0.0)
        return outcome_of(job, error)


def _not_started(job: RunningJob) -> Outcome | None:
    """Cancelled before its handler was called: by a lost lease, or by a shutdown, and then it keeps its place."""
    return None if job.cancelled == LEASE_LOST else Released(None)


def _refuse_unrun(result: object, step: str) -> None:
    """For a handler whose work has not even begun: it is no success."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"the handler returned a coroutine; {step}")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the handler returned a generator, which nobody runs; iterate over it in the handler")
