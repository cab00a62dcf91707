"""The listener: turns notifications into wake-ups. A wake-up is a hint; polling is the truth.

The one place that knows a driver: SQLAlchemy has no LISTEN.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine

from sqlane_sa.schema import Tables
from sqlane_sa.worker.database import own_engine
from sqlane_sa.worker.service import first_line

log = logging.getLogger("sqlane_sa.worker")

PING_INTERVAL = 15.0
"""Seconds. A session whose peer is gone without a word is found by a query on it."""


class Listener:
    """Waits on the socket of a LISTENing connection of its own and calls `wake` for what arrives."""

    def __init__(self, engine: Engine, tables: Tables, wake: Callable[[], None]) -> None:
        self._engine = own_engine(engine, "AUTOCOMMIT")
        self._channel = tables.channel
        self._wake = wake
        self._conn: Connection | None = None
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._next_ping = 0.0

    @staticmethod
    def is_supported(engine: Engine) -> bool:
        return engine.dialect.driver == "psycopg"

    def run_once(self) -> float:
        """Listen (connecting first when needed) until something arrives, a ping is due or `stop`."""
        if self._conn is None:
            self._connect()
            # What was enqueued while nobody listened.
            self._wake()
        driver: Any = self._conn.connection.driver_connection  # type: ignore[union-attr]
        ready = self._wait_for(driver.fileno())
        if self._stop_reader in ready:
            return 0.0
        if not ready:
            self._ping()
        if self._notified(driver):
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

    def _connect(self) -> None:
        self._conn = self._engine.connect()
        quoted = self._engine.dialect.identifier_preparer.quote(self._channel)
        self._conn.exec_driver_sql(f"LISTEN {quoted}")
        self._next_ping = time.monotonic() + PING_INTERVAL

    def _wait_for(self, fileno: int) -> list[object]:
        # Not select.select, which ends at file number 1023.
        with selectors.DefaultSelector() as selector:
            for each in (fileno, self._stop_reader):
                selector.register(each, selectors.EVENT_READ)
            ready = selector.select(max(0.0, self._next_ping - time.monotonic()))
        return [key.fileobj for key, _ in ready]

    def _notified(self, driver: Any) -> bool:
        try:
            return bool(list(driver.notifies(timeout=0)))
        except self._engine.dialect.loaded_dbapi.Error as error:
            # A lost connection, and to the service no fault of the code.
            raise ConnectionError(first_line(error)) from error

    def _ping(self) -> None:
        assert self._conn is not None
        self._conn.exec_driver_sql("SELECT 1").close()
        self._next_ping = time.monotonic() + PING_INTERVAL
