"""What tests of several folders need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
import sqlalchemy as sa

T = TypeVar("T")

# What looks most like a parameter and may be in a name: before 2.1, SQLAlchemy takes "%(a)s" for one.
PARAMETER_LIKE = "%(a)s" if sa.__version__ >= "2.1" else "%%s"

LOCK_WAITS = sa.text(
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid() ORDER BY pid"
)


def long_run(timeout: float = 600) -> list[pytest.MarkDecorator]:
    """The marks of what takes minutes where the default run does the same in seconds."""
    runs = os.environ.get("SQLANE_LONG_FAULTS") == "1"
    return [
        pytest.mark.skipif(not runs, reason="takes minutes; set SQLANE_LONG_FAULTS=1"),
        pytest.mark.timeout(timeout),
    ]


def wait_until(predicate: Callable[[], T], timeout: float = 60.0, message: str = "") -> T:
    """Ask until the answer is true, and return it; the one place in the tests that sleeps.

    Every 5 ms at first, and then less often: who asks takes the processor from what it waits for.
    """
    began = time.monotonic()
    while not (answer := predicate()):
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"{message or 'the awaited state'} did not come within {timeout:g} s")
        time.sleep(min(max(0.005, waited / 20), 0.05))
    return answer


def blocked_pids(conn: sa.Connection) -> list[int]:
    """The other backends of this database that wait for a lock."""
    return list(conn.scalars(LOCK_WAITS))


def wait_for_lock_wait(engine: sa.Engine, n: int = 1) -> list[int]:
    """Wait until `n` backends of the engine's database wait for a lock."""
    # In autocommit: within a transaction PostgreSQL shows the activity as it was at the first look.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        return wait_until(
            lambda: pids if len(pids := blocked_pids(conn)) >= n else [], message=f"{n} backends waiting for a lock"
        )


def with_driver(url: str, driver: str) -> str:
    """The same database through another driver: "asyncpg", "pg8000", "psycopg2"."""
    return sa.make_url(url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False)
