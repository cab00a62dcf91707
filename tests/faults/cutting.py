"""Cuts an operation at a message, looks at what the database then holds, and does the operation again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from sqlane_sa.worker.deadlines import Deadlines
from sqlane_sa.worker.execution import LeaseLostError
from tests.faults.messages import Sender
from tests.faults.operations import Operation
from tests.faults.proxy import HALF_OPEN, Fault, Link, Proxy
from tests.faults.state import State, States
from tests.faults.subjects import new_queue
from tests.faults.way import Way
from tests.support import wait_until

TRIES = 5
"""With twice the time each: on a busy machine a short deadline may pass before the fault, again and again."""
LATE = 1.0
"""Seconds after its deadline by which a call has ended."""
_BACKEND = sa.text("SELECT count(*) FROM pg_stat_get_activity(:pid)")


@dataclass(frozen=True)
class Clean:
    """A run without a fault: the state before it and after it, and its messages."""

    before: State
    after: State
    messages: Sequence[tuple[Sender, str]]


@dataclass(frozen=True)
class Cut:
    """What came of one fault. `error` is what the caller got, `took` how long that was in seconds."""

    fault: Fault
    error: str | None
    took: float
    committed: bool

    @property
    def recovered(self) -> bool:
        """Committed, and the caller got an error."""
        return self.committed and self.error is not None


class TooSlowError(Exception):
    """The deadline passed before the fault, or the call ended late after it: the machine may be busy."""


class Lane:
    """A database of its own, a direct way to it and one through the proxy; one thread at a time."""

    def __init__(self, url: str, proxy: Proxy, hurried: Sequence[Deadlines], patient: Deadlines) -> None:
        """`hurried` are the deadlines of one try after the other."""
        self.queue = new_queue()
        self._states = States(self.queue.tables)
        self._proxy = proxy
        self.direct = sa.create_engine(url).connect()
        self._through = proxy.url_to(sa.make_url(url).database)
        self._deadlines = hurried
        self._hurried: list[Way] = []
        self._patient, self._other = Way(self._through, patient), Way(self._through, patient)

    def close(self) -> None:
        for way in self._hurried:
            way.close()
        self._patient.close()
        self._other.close()
        self.direct.close()
        self.direct.engine.dispose()

    def state(self) -> State:
        with self.direct.begin():
            return self._states.read(self.direct)

    def clean(self, operation: Operation) -> Clean:
        self._forget()
        subject = self._prepare(operation)
        before, link = self.state(), self._link(operation, self._patient)
        link.count()
        self._run(operation, subject, self._patient)
        messages = tuple(link.messages)
        self._forget()
        return Clean(before, self.state(), messages)

    def cut(self, operation: Operation, clean: Clean, fault: Fault) -> Cut:
        """Raises `AssertionError` when the state is neither the one before nor the one after, when the second try does
        not lead to the one after, and when the call ends too late each time."""
        slow: list[TooSlowError] = []
        while len(slow) < len(self._deadlines):
            try:
                return self._cut(operation, clean, fault, len(slow))
            except TooSlowError as error:
                slow.append(error)
                self._forget()
            except BaseException as error:
                names = [name for sender, name in clean.messages if sender == fault.sender]
                error.add_note(f"{operation}: {fault}, which is the last of {names[: fault.n]}")
                raise
        raise AssertionError(f"{operation}, {fault}: too slow {len(slow)} times: {slow}")

    def _cut(self, operation: Operation, clean: Clean, fault: Fault, tries: int) -> Cut:
        subject = self._prepare(operation)
        way = self._hurry(tries) if fault.act is HALF_OPEN else self._patient
        link = self._armed(operation, way, fault)
        began = time.monotonic()
        error = self._try(operation, subject, way)
        took = time.monotonic() - began
        if error is not None and not link.fired:
            self._end(link)
            raise TooSlowError(f"its deadline passed before; {error}")
        # The caller may have read the message before the proxy notes that it is delivered.
        wait_until(lambda: link.fired, message=str(fault))
        if fault.act is HALF_OPEN:
            self._look(clean, error)  # the server does not know yet
        self._end(link)
        if took > self._deadlines[tries].seconds + LATE:
            raise TooSlowError(f"it took {took:.2f} s")
        committed = self._look(clean, error)
        self._forget()
        self._run(operation, subject, self._other, again=True)
        assert self.state() == clean.after, "done again, it had another effect than done once"
        return Cut(fault, error, took, committed)

    def _hurry(self, tries: int) -> Way:
        if tries == len(self._hurried):
            self._hurried.append(Way(self._through, self._deadlines[tries]))
        return self._hurried[tries]

    def _armed(self, operation: Operation, way: Way, fault: Fault) -> Link:
        try:
            link = self._link(operation, way)
        except sa.exc.DBAPIError as error:
            raise TooSlowError(f"it could not connect: {error}") from error
        link.arm(fault)
        return link

    def _prepare(self, operation: Operation) -> Any:
        with self.direct.begin():
            self._states.clear(self.direct)
            return operation.prepare(self.direct, self.queue)

    def _link(self, operation: Operation, way: Way) -> Link:
        link: Link = way.call(operation, lambda conn: self._proxy.link_of(getattr(conn, "sync_connection", conn)))
        return link

    def _run(self, operation: Operation, subject: Any, way: Way, *, again: bool = False) -> None:
        run = operation.again if again and operation.again else operation.run
        # A transactional handler that runs again after its commit is fenced off, and its transaction rolled back.
        with suppress(LeaseLostError):
            way.call(operation, lambda conn: run(conn, self.queue, subject))

    def _try(self, operation: Operation, subject: Any, way: Way) -> str | None:
        try:
            self._run(operation, subject, way)
        except sa.exc.DBAPIError as error:
            return f"{type(error).__name__}: {str(error.orig).strip()}"
        return None

    def _look(self, clean: Clean, error: str | None) -> bool:
        state = self.state()
        assert state in (clean.before, clean.after), "half done"
        assert error is not None or state == clean.after, "no error, and nothing was done"
        return state == clean.after != clean.before

    def _end(self, link: Link) -> None:
        """The server learns that the connection is gone, as it does from its keepalives."""
        link.cut()
        pid = link.backend_pid
        wait_until(lambda: not self._lives(pid), message=f"the end of backend {pid}")

    def _lives(self, pid: int | None) -> bool:
        with self.direct.begin():
            return bool(self.direct.scalar(_BACKEND, {"pid": pid}))

    def _forget(self) -> None:
        """Also a connection that ended after the last message, which nobody knows yet."""
        for way in self._hurried:
            way.forget()
        self._patient.forget()
