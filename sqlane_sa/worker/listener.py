"""The listener: keeps a connection on which wake-ups arrive. A wake-up is a hint; polling is the truth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, text

from sqlane_sa.schema import Tables
from sqlane_sa.values.ids import new_id
from sqlane_sa.worker.bell import Bell
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import Deadlines
from sqlane_sa.worker.ear import PING, Ear, wake_ups

log = logging.getLogger("sqlane_sa.worker")

PING_INTERVAL = 15.0
"""Seconds. A session whose peer is gone without a word, or that listens no more, is found by a ping."""
DEAF_PAUSE = 300.0
"""Seconds until a worker whose pings do not arrive tries to listen again."""

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


class Listener:
    """Lends the loop a LISTENing connection of its own, as an ear; and pings it, where the loop cannot tell that it is
    dead. Calls `wake` for what may have arrived while the loop did not hear.

    Each connection is tested before it is trusted: by a notification from another session, for behind a pooler that
    lends sessions out by the transaction LISTEN works and nothing ever arrives. `hearing(bool)` says what came out.
    """

    def __init__(
        self,
        connector: Connector,
        deadlines: Deadlines,
        tables: Tables,
        ear: Ear,
        wake: Callable[[], None],
        hearing: Callable[[bool], None],
    ) -> None:
        self._engine = connector.engine("AUTOCOMMIT")
        self._deadlines = deadlines
        self._channel = tables.channel
        self._ear = ear
        self._wake = wake
        self._hearing = hearing
        self._conn: Connection | None = None
        self._called = Bell()
        self._stopped = False
        self._lost: Exception | None = None
        self._next_ping = 0.0
        self._deaf = False

    def run_once(self) -> float:
        """Connect when needed, and wait until a ping is due, the connection is lost or `stop`; seconds to pause."""
        if self._conn is None and not self._connect():
            return DEAF_PAUSE
        self._called.wait(self._next_ping - time.monotonic())
        if self._lost:
            raise self._as_outage(self._lost)
        if not self._stopped and time.monotonic() >= self._next_ping:
            with self._ear.taken_back():
                self._ping()
        return 0.0

    def stop(self) -> None:
        self._stopped = True
        self._called.set()

    def release(self) -> None:
        """Once the thread has ended."""
        self._called.close()

    def close(self) -> None:
        self._ear.take_back()
        conn, self._conn = self._conn, None
        if conn is not None:
            try:
                conn.invalidate()
            finally:
                conn.close()

    def _lose(self, error: Exception) -> None:
        """Called by the loop, which has met the error on its ear."""
        self._lost = error
        self._called.set()

    def _connect(self) -> bool:
        """Whether notifications arrive on the new connection."""
        self._lost = None
        self._called.clear()
        if self._stopped:  # before it was cleared
            self._called.set()
        with self._deadlines.limit():
            self._conn = self._engine.connect()
            quoted = self._engine.dialect.identifier_preparer.quote(self._channel)
            self._conn.exec_driver_sql(f"LISTEN {quoted}").close()
        self._next_ping = time.monotonic() + PING_INTERVAL
        with self._deadlines.limit(), self._engine.connect() as other:
            arrives = self._arrives(other)
        # What was enqueued while nobody listened.
        self._wake()
        self._hearing(arrives)
        if not arrives:
            self._say_deaf()
            self.close()
            return False
        if self._deaf:
            self._deaf = False
            log.warning("listener: notifications arrive again")
        self._ear.lend(self._driver, self._lose)
        return True

    def _say_deaf(self) -> None:
        if not self._deaf:
            self._deaf = True
            log.warning(
                "listener: LISTEN works and no notification arrives, as behind a pooler in transaction mode; this "
                "worker only polls. Give it a URL around the pooler, or wakeups=False (--no-wakeups)"
            )

    def _ping(self) -> None:
        """Whoever has ended the session, or its LISTEN, has not told."""
        assert self._conn is not None
        with self._deadlines.limit(self._conn):
            arrived = self._arrives(self._conn)
        if not arrived:
            raise ConnectionError("a notification to itself did not arrive; it connects anew")
        self._next_ping = time.monotonic() + PING_INTERVAL

    def _arrives(self, sender: Connection) -> bool:
        """Whether a notification from `sender` arrives within the deadline; a stop ends the wait too."""
        payload = PING + new_id()
        sender.execute(_NOTIFY, {"channel": self._channel, "payload": payload}).close()
        until = time.monotonic() + min(self._deadlines.seconds, PING_INTERVAL) / 2
        while payload not in (heard := self._payloads()):
            if wake_ups(heard):
                self._wake()
            if not self._called.wait(until - time.monotonic(), self._driver.fileno()):
                return self._stopped
        if wake_ups(heard):
            self._wake()
        return True

    def _payloads(self) -> list[str]:
        """Of the notifications that have arrived, also with the replies to statements."""
        try:
            return [notify.payload for notify in self._driver.notifies(timeout=0)]
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise self._as_outage(error) from error

    def _as_outage(self, error: Exception) -> Exception:
        """A lost connection is to the service no fault of the code."""
        if isinstance(error, self._engine.dialect.loaded_dbapi.Error):
            return ConnectionError(str(error).strip().partition("\n")[0])
        return error

    @property
    def _driver(self) -> Any:
        assert self._conn is not None
        return self._conn.connection.driver_connection
