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
from sqlane_sa.worker.hints import Hints
from tests.support import wait_until

COUNT = 10_000
CANARY = "rubbish-f3a1"
LOOKS = ("WITH picked AS MATERIALIZED", "WITH RECURSIVE plain")
"""Of the two statements that look for due jobs. Each wake-up that is followed sends one of each at most."""

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
    """The looks for due jobs on an engine and on those that a worker makes from it."""
    statements: list[str] = []

    @sa.event.listens_for(engine, "do_execute")
    def count(cursor: object, statement: str, parameters: object, context: object) -> None:
        if statement.strip().startswith(LOOKS):
            statements.append(statement)

    yield statements
    sa.event.remove(engine, "do_execute", count)


def test_a_second_of_wake_ups_for_nothing_is_followed_some_ten_times() -> None:
    """The rule by itself, for a machine that is too busy to look 10,000 times; and a true one is not kept waiting."""
    hints = Hints()
    looks = 0
    for n in range(COUNT):
        now = n / COUNT
        hints.note()
        if hints.take(now):
            looks += 1
            hints.followed(now, found=False)
    assert 5 < looks < 20
    hints.note()
    assert hints.take(5.0)
    hints.followed(5.0, found=True)
    assert hints.note()


def test_forged_notifications_cost_a_bounded_number_of_looks(
    engine: sa.Engine, queue: Queue, forger: sa.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """10,000 of them, as fast as the server takes them: a look each would be 10,000."""
    caplog.set_level(logging.DEBUG)
    ran = threading.Event()
    queue.job("n")(lambda payload: ran.set())
    with counted(engine) as looks, Worker(engine, queue, poll_interval=60):
        asleep = sa.text("SELECT count(*) FROM sqlane_sleepers")
        wait_until(lambda: forger.scalar(asleep) == 1)
        at_rest = len(looks)
        start = time.monotonic()
        forger.exec_driver_sql((FORGE % (COUNT, queue.tables.channel, CANARY)).replace("%", "%%"))
        seconds = time.monotonic() - start
        forged = len(looks) - at_rest
        # The wake-up that is true is followed as well as ever.
        with engine.begin() as conn:
            queue.enqueue(conn, "n")
        assert ran.wait(60)
    assert at_rest > 0, "the worker's looks are not counted"
    assert forged < 2 * (10 + 12 * seconds), f"{forged} looks in {seconds:.1f} s"
    assert CANARY not in caplog.text
