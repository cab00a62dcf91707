"""Fixtures for wake-ups, heard on a connection of their own, for a conftest.py to import all of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store

__all__ = ["asleep", "heard"]

Heard = Callable[[], int]


def until_end(listener: psycopg.Connection) -> Iterator[psycopg.Notify]:
    for notice in listener.notifies(timeout=60):
        yield notice
        if notice.payload == "end":
            return


def listening_url(database_url: str) -> str:
    """Around the pooler, where the tests run behind one (tests/pgbouncer): no notification passes it."""
    url = sa.make_url(database_url)
    direct = sa.make_url(os.environ.get("SQLANE_TEST_DIRECT_URL", database_url)).set(database=url.database)
    return direct.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def heard(database_url: str, engine: sa.Engine, queue: Queue) -> Iterator[Heard]:
    """How many notifications came since it was last asked."""
    with psycopg.connect(listening_url(database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {queue.tables.channel}")

        def ask() -> int:
            # One of our own marks the end: notifications come in the order of the commits.
            with engine.begin() as conn:
                conn.execute(sa.text("SELECT pg_notify(:channel, 'end')"), {"channel": queue.tables.channel})
            notices = [notice.payload for notice in until_end(listener)]
            assert notices.pop() == "end"
            return len(notices)

        yield ask


@pytest.fixture
def asleep(engine: sa.Engine, queue: Queue) -> None:
    """A worker that waits to be told."""
    with engine.begin() as conn:
        store.fall_asleep(conn, queue.tables, worker_id="w", duration=60)
