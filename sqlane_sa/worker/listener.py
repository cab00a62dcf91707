"""The listener: turns notifications into wake-ups. A wake-up is a hint; polling is the truth."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, text

from sqlane_sa.schema import Tables
from sqlane_sa.values.ids import new_id
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import Deadlines

log = logging.getLogger("sqlane_sa.worker")

PING_INTERVAL = 15.0
"""Seconds. A session whose peer is gone without a word, or that listens no more, is found by a ping."""
DEAF_PAUSE = 300.0
"""Seconds until a worker whose pings do not arrive tries to listen again."""
PING = "ping:"
"""The mark of notifications that workers send to themselves; the others do not take them for a wake-up."""

_NOTIFY = text("SELECT pg_notify(:channel, :payload)")


class Listener:
    """Waits on the socket of a LISTENing connection of its own and calls `wake` for what arrives.

    Each connection is tested before it is trusted: by a notification from another session, for behind a pooler that
    lends sessions out by the transaction LISTEN works and nothing ever arrives. `hearing(bool)` says what came out.
    """

    def __init__(
        self,
        connector: Connector,
        deadlines: Deadlines,
        tables: Tables,
        wake: Callable[[], None],
        hearing: Callable[[bool], None],
    ) -> None:
        self._engine = connector.engine("AUTOCOMMIT")
        self._deadlines = deadlines
        self._channel = tables.channel
        self._wake = wake
        self._hearing = hearing
        self._conn: Connection | None = None
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._next_ping = 0.0
        self._deaf = False

    def run_once(self) -> float:
        """Listen (connecting first when needed) until something arrives, a ping is due or `stop`; seconds to pause."""
        if self._conn is None and not self._connect():
            return DEAF_PAUSE
        ready = self._wait(self._next_ping)
        if self._stop_reader in ready:
            return 0.0
        if not ready:
            self._ping()
        elif self._heard():
            self._wake()
        return 0.0

    def stop(self) -> None:
        self._stop_writer.send(b".")

    def release(self) -> None:
        """Once the thread has ended."""
        self._stop_reader.close()
        self._stop_writer.close()

    def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            try:
                conn.invalidate()
            finally:
                conn.close()

    def _connect(self) -> bool:
        """Whether notifications arrive on the new connection."""
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
        elif self._deaf:
            self._deaf = False
            log.warning("listener: notifications arrive again")
        return arrives

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
            if any(not one.startswith(PING) for one in heard):
                self._wake()
            ready = self._wait(until)
            if not ready or self._stop_reader in ready:
                return bool(ready)
        if any(not one.startswith(PING) for one in heard):
            self._wake()
        return True

    def _heard(self) -> bool:
        return any(not payload.startswith(PING) for payload in self._payloads())

    def _payloads(self) -> list[str]:
        """Of the notifications that have arrived."""
        driver: Any = self._driver
        try:
            return [notify.payload for notify in driver.notifies(timeout=0)]
        except self._engine.dialect.loaded_dbapi.Error as error:
            # A lost connection, and to the service no fault of the code.
            raise ConnectionError(str(error).strip().partition("\n")[0]) from error

    @property
    def _driver(self) -> Any:
        assert self._conn is not None
        return self._conn.connection.driver_connection

    def _wait(self, until: float) -> list[object]:
        """What is ready to be read by then: the connection, or the request to stop."""
        # Not select.select, which ends at file number 1023.
        with selectors.DefaultSelector() as selector:
            for each in (self._driver.fileno(), self._stop_reader):
                selector.register(each, selectors.EVENT_READ)
            ready = selector.select(max(0.0, until - time.monotonic()))
        return [key.fileobj for key, _ in ready]
