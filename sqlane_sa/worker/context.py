"""What a handler gets beside its payload."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import Connection

from sqlane_sa.queue import Queue
from sqlane_sa.values.errors import DefinitionError
from sqlane_sa.values.job import ClaimedJob, Enqueued
from sqlane_sa.values.options import JobOptions
from sqlane_sa.worker.deadlines import Deadlines
from sqlane_sa.worker.running import RunningJob
from sqlane_sa.worker.transactions import Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class JobContext:
    """`ctx` in a handler: facts of the job, `cancelled`, `enqueue`, and in a transactional one its transaction."""

    def __init__(
        self,
        running: RunningJob,
        queue: Queue,
        transaction: Transaction,
        deadlines: Deadlines,
        connection: Connection | None = None,
    ) -> None:
        self._running = running
        self._queue = queue
        self._transaction = transaction
        self._deadlines = deadlines
        self._connection = connection
        self._session: Session | None = None

    @property
    def _job(self) -> ClaimedJob:
        return self._running.claimed

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. Releases and stalls do not count."""
        return self._job.attempt

    @property
    def max_attempts(self) -> int:
        return self._job.max_attempts

    @property
    def lock_token(self) -> str:
        """The fencing token of this claim: pass it to systems that can refuse writes of an older one."""
        return self._job.lock_token

    @property
    def enqueued_at(self) -> datetime:
        return self._job.enqueued_at

    @property
    def waited(self) -> timedelta:
        """From the time the job was due to its claim, by the database's clock."""
        return timedelta(milliseconds=self._job.waited_ms)

    @property
    def cancelled(self) -> threading.Event:
        """Set on timeout, on a lost lease and at the end of a shutdown's patience. A long `def` handler looks at it."""
        return self._running.event

    @property
    def cancel_reason(self) -> str | None:
        """ "timeout", "lease lost" or "shutdown" once `cancelled` is set."""
        return self._running.cancelled

    @property
    def connection(self) -> Connection:
        """The connection of a transactional handler: what it writes commits together with the job's completion.

        Raises `DefinitionError` in other handlers.
        """
        if self._connection is None:
            raise DefinitionError(
                f"ctx.connection and ctx.session are there for transactional jobs; define {self.name!r} with "
                "transactional=True",
                option="transactional",
                value=False,
            )
        return self._connection

    @property
    def session(self) -> Session:
        """A Session on `connection`, within a savepoint of its transaction: `commit` and `rollback` of the session end
        the savepoint alone, and what is pending is flushed before the job completes. Raises like `connection`."""
        if self._session is None:
            from sqlalchemy.orm import Session  # not all of the ORM for handlers without one

            self._session = Session(bind=self.connection, join_transaction_mode="create_savepoint")
        return self._session

    def enqueue(self, name: str, payload: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Enqueue another job: in a transactional handler in its transaction, otherwise in one of its own.

        Options and errors as for `queue.enqueue`.
        """
        if self._connection is not None:
            return self._queue.enqueue(self._connection, name, payload, **options)
        with self._transaction() as conn, self._deadlines.limit(conn):
            return self._queue.enqueue(conn, name, payload, **options)

    def commit_session(self) -> None:
        """Flush, and release the savepoint: nothing is committed before the job's completion."""
        if self._session is not None:
            self._session.commit()

    def close_session(self) -> None:
        if self._session is not None:
            self._session.close()
