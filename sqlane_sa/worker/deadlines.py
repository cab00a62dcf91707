"""Deadlines: an end to every wait for the database.

The server's timeouts do not help where the network swallows their errors, and the kernel's not where a proxy answers in
the server's place, or where a COMMIT waits for a standby that is gone. So a thread of this process watches the calls,
and shuts the socket of one that takes too long: its thread wakes with the error of a lost connection, whatever it
waited for. What became of the call is then unknown.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from os import close, dup
from types import TracebackType
from typing import Any

from sqlalchemy import Connection

from sqlane_sa.worker.driver import file_number, is_readable

log = logging.getLogger("sqlane_sa.worker")

SHORTEST = 5.0
LONGEST = 30.0
SHORTEST_IDLE = 1.0
STARVED = 0.5
READING = 1.0
"""Seconds for this process to read what has arrived."""


def deadline_for(lease: float) -> float:
    """Seconds for one call: a third of the lease, so that a renewal that hangs can be tried again in time; but not so
    few that a busy server looks like a dead one."""
    return min(max(lease / 3, SHORTEST), LONGEST)


def idle_limit_for(lease: float) -> float:
    """Seconds for which the server waits for the next statement of a transaction: what a process that stands still has
    locked is free when its leases end, or before."""
    return min(max(lease, SHORTEST_IDLE), LONGEST)


class Call:
    """A wait for the database that ends at `until` (monotonic seconds) at the latest."""

    __slots__ = ("_borrowed", "_number", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self._number: int | None = None
        self._borrowed = False

    def watch(self, driver_connection: Any) -> None:
        """Watch a connection's socket. By a number of its own: that of a closed connection may be somebody else's."""
        if self._number is None:
            self._number = own_number(driver_connection)

    def borrow(self, number: int) -> None:
        """Watch a socket by a number that stays open for longer than the call."""
        if self._number is None:
            self._number, self._borrowed = number, True

    def replied(self) -> bool:
        """Whether something has arrived that this process has not read yet."""
        return self._number is not None and is_readable(self._number)

    def cut(self) -> None:
        if self._number is not None:
            watched = socket.socket(fileno=self._number)
            try:
                watched.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("a call past its deadline had lost its connection already")
            finally:
                watched.detach()

    def close(self) -> None:
        if self._number is not None and not self._borrowed:
            close(self._number)


def own_number(driver_connection: Any) -> int | None:
    """Another number for a connection's socket, to be closed by whoever asks; None where there is none."""
    number = file_number(driver_connection)
    return None if number is None else dup(number)


class Limit:
    """The context in which a call ends by the deadline."""

    __slots__ = ("_call", "_conn", "_deadlines", "_outer")

    def __init__(self, deadlines: Deadlines, conn: Connection | None) -> None:
        self._deadlines = deadlines
        self._conn = conn
        self._outer: Call | None = None

    def __enter__(self) -> Call:
        deadlines = self._deadlines
        self._call = call = Call(time.monotonic() + deadlines.seconds)
        if deadlines.seconds != math.inf:
            self._outer = deadlines.begin(call)
            if self._conn is not None:
                try:
                    deadlines.watch(self._conn)
                except BaseException:
                    deadlines.end(call, self._outer)
                    raise
        return call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._deadlines.seconds != math.inf:
            self._deadlines.end(self._call, self._outer)


class Deadlines:
    """Watches the calls of a worker; one thread for all of them runs `run_once`. Infinite seconds: no limit at all.

    `idle_limit`: seconds for which the server waits for this process within a transaction; None: as it is set there.
    """

    def __init__(self, seconds: float, *, idle_limit: float | None = None) -> None:
        self.seconds = seconds
        self.idle_limit = idle_limit
        self._calls: set[Call] = set()
        self._lock = threading.Lock()
        self._here = threading.local()
        self._stopped = threading.Event()

    def limit(self, conn: Connection | None = None) -> Limit:
        """Within, calls on `conn`, or on the connection that is opened here, end by the deadline."""
        return Limit(self, conn)

    def begin(self, call: Call) -> Call | None:
        """This thread is in `call` from now on; in which one it was."""
        outer, self._here.call = self.here, call
        with self._lock:
            self._calls.add(call)
        return outer

    def end(self, call: Call, outer: Call | None) -> None:
        self._here.call = outer
        # Under the lock: the number must not become another file's while the watch shuts it.
        with self._lock:
            self._calls.discard(call)
            call.close()

    @property
    def here(self) -> Call | None:
        """The call that this thread is in."""
        return getattr(self._here, "call", None)

    def watch(self, conn: Connection) -> None:
        """`conn` is what this thread's call waits for."""
        if self.here is not None and not (conn.closed or conn.invalidated):
            self.here.watch(conn.connection.driver_connection)

    def run_once(self) -> float:
        """Wait until the next deadline there may be, and cut what is over it."""
        with self._lock:
            soonest = min((call.until for call in self._calls), default=math.inf)
        planned = min(soonest, time.monotonic() + self.seconds)
        self._stopped.wait(max(0.0, planned - time.monotonic()))
        self._cut_overdue(time.monotonic(), planned)
        return 0.0

    def run(self) -> None:
        """Watch until `stop`."""
        while not self._stopped.is_set():
            self.run_once()

    def stop(self) -> None:
        self._stopped.set()

    def _cut_overdue(self, now: float, planned: float) -> None:
        with self._lock:
            for call in self._calls:
                if now - planned > STARVED:
                    # A handler held the interpreter, or the machine slept: the callers could not look either.
                    call.until += now - planned + READING
                if call.until > now:
                    continue
                if call.replied():
                    call.until = now + READING
                else:
                    log.warning("the database did not answer for %.0f s; its connection is closed", self.seconds)
                    call.cut()
                    call.until = math.inf


UNLIMITED = Deadlines(math.inf)
