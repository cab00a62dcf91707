"""Notifications are hints: whoever may connect may send them, and gains nothing by it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker
from tests.support import wait_until

COUNT = 10_000
CANARY = "rubbish-f3a1"
LOOK_STATEMENTS = 12
"""More than a look at the queue that finds nothing takes, in statements."""

# A transaction each, so that each is a wake-up of its own.
FORGE = """
DO $$ BEGIN
    FOR i IN 1..%d LOOP
        PERFORM pg_notify('%s', repeat('%s{"id": "DROP TABLE sqlane_jobs"}', i %% 100));
        COMMIT;
    END LOOP;
END $$"""


@pytest.fixture
def forger(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Of an engine of its own: its statements are not the worker's."""
    other = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with other.connect() as conn:
        yield conn


@contextmanager
def counted(engine: sa.Engine) -> Iterator[list[str]]:
    """The statements of an engine and of those that a worker makes from it."""
    statements: list[str] = []

    @sa.event.listens_for(engine, "do_execute")
    def count(cursor: object, statement: str, parameters: object, context: object) -> None:
        statements.append(statement)

    yield statements
    sa.event.remove(engine, "do_execute", count)


def test_forged_notifications_cost_a_bounded_number_of_looks(
    engine: sa.Engine, queue: Queue, forger: sa.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """10,000 of them, as fast as the server takes them: a look each would be 10,000."""
    caplog.set_level(logging.DEBUG)
    ran = threading.Event()
    queue.job("n")(lambda payload: ran.set())
    with Worker(engine, queue, poll_interval=60), counted(engine) as statements:
        asleep = sa.text("SELECT count(*) FROM sqlane_sleepers")
        wait_until(lambda: forger.scalar(asleep) == 1)
        at_rest = len(statements)
        start = time.monotonic()
        forger.exec_driver_sql((FORGE % (COUNT, queue.tables.channel, CANARY)).replace("%", "%%"))
        seconds = time.monotonic() - start
        looks = (len(statements) - at_rest) / LOOK_STATEMENTS
        # The wake-up that is true is followed as well as ever.
        with engine.begin() as conn:
            queue.enqueue(conn, "n")
        assert ran.wait(20)
    assert len(statements) > at_rest, "the worker's statements are not counted"
    assert looks < 20 + 20 * seconds, f"{looks:.0f} looks in {seconds:.1f} s"
    assert CANARY not in caplog.text
