"""Deadlines: an end to every wait for the database.

The server's timeouts do not help where the network swallows their errors, and the kernel's not where a proxy answers in
the server's place, or where a COMMIT waits for a standby that is gone. So a thread of this process watches the calls,
and shuts the socket of one that takes too long: its thread wakes with the error of a lost connection, whatever it
waited for. What became of the call is then unknown.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import dup
from typing import Any

from sqlalchemy import Connection

from sqlane_sa.worker.driver import file_number

log = logging.getLogger("sqlane_sa.worker")

SHORTEST = 5.0
LONGEST = 30.0
STARVED = 0.5
READING = 1.0
"""Seconds for this process to read what has arrived."""


def deadline_for(lease: float) -> float:
    """Seconds for one call: a third of the lease, so that a renewal that hangs can be tried again in time; but not so
    few that a busy server looks like a dead one."""
    return min(max(lease / 3, SHORTEST), LONGEST)


class Call:
    """A wait for the database that ends at `until` (monotonic seconds) at the latest."""

    __slots__ = ("_socket", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self._socket: socket.socket | None = None

    def watch(self, driver_connection: Any) -> None:
        """Watch a connection's socket. By a number of its own: that of a closed connection may be somebody else's."""
        number = file_number(driver_connection)
        if number is not None and self._socket is None:
            self._socket = socket.socket(fileno=dup(number))

    def replied(self) -> bool:
        """Whether something has arrived that this process has not read yet."""
        if self._socket is None:
            return False
        poll = select.poll()  # select.select ends at file number 1023
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def cut(self) -> None:
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("a call past its deadline had lost its connection already")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class Deadlines:
    """Watches the calls of a worker; one thread for all of them runs `run_once`. Infinite seconds: no limit at all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls: set[Call] = set()
        self._lock = threading.Lock()
        self._here = threading.local()
        self._stopped = threading.Event()

    @contextmanager
    def limit(self, conn: Connection | None = None) -> Iterator[Call]:
        """Within, calls on `conn`, or on the connection that is opened here, end by the deadline."""
        call = Call(time.monotonic() + self.seconds)
        if self.seconds == math.inf:
            yield call
            return
        outer, self._here.call = self.here, call
        with self._lock:
            self._calls.add(call)
        try:
            if conn is not None:
                self.watch(conn)
            yield call
        finally:
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
