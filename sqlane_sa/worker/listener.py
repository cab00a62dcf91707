"""The listener: turns notifications into wake-ups. A wake-up is a hint; polling is the truth.

The one place that knows a driver: SQLAlchemy has no LISTEN.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine

from sqlane_sa.schema import Tables
from sqlane_sa.worker.database import own_engine

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
        self._stop_reader, self._stop_writer = os.pipe()
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
        wait = max(0.0, self._next_ping - time.monotonic())
        ready, _, _ = select.select([driver.fileno(), self._stop_reader], [], [], wait)
        if self._stop_reader in ready:
            return 0.0
        if not ready:
            self._ping(driver)
        if list(driver.notifies(timeout=0)):
            self._wake()
        return 0.0

    def stop(self) -> None:
        os.write(self._stop_writer, b".")

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

    def _ping(self, driver: Any) -> None:
        driver.execute("SELECT 1")
        self._next_ping = time.monotonic() + PING_INTERVAL
