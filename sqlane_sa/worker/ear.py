"""Ear: the connection that listens, as the loop hears it.

The thread that claims waits on the socket itself. A thread between it and the notification would cost the time to wake
another one, and to get the interpreter from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlane_sa.worker.driver import received

PING = "ping:"
"""The mark of notifications that workers send to themselves; the others do not take them for a wake-up."""


class Ear:
    """Lent by the listener, which makes the connection, tests it and gets it back when it is lost. Whoever waits on
    the socket is told by `changed` when it is another one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._connection: Any = None
        self._lost: Callable[[Exception], None] = _nobody
        self.file: int | None = None
        """The number of the socket to wait on; None while there is none, or the listener has it."""

    def lend(self, connection: Any, lost: Callable[[Exception], None]) -> None:
        """Hear on this connection of the driver, until it is taken back or `lost`."""
        with self._lock:
            self._connection, self._lost = connection, lost
            self.file = connection.fileno()
        self._changed()

    def take_back(self) -> None:
        """Nothing is read from the connection any more."""
        self.file = None
        with self._lock:
            self._connection = None
        self._changed()

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        """For as long; and for good after an error."""
        connection, lost = self._connection, self._lost
        self.take_back()
        yield
        if connection is not None:
            self.lend(connection, lost)

    def hear(self) -> int:
        """How many wake-ups have arrived since the last time. Waits for nobody."""
        if self.file is None or not self._lock.acquire(blocking=False):
            return 0
        try:
            return len(wake_ups(received(self._connection))) if self._connection is not None else 0
        except Exception as error:
            self.file = None
            self._lost(error)
            return 0
        finally:
            self._lock.release()


def wake_ups(payloads: list[str]) -> list[str]:
    return [payload for payload in payloads if not payload.startswith(PING)]


def _nobody(error: Exception) -> None:
    """Nothing was lent."""
