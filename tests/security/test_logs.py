"""Who may enqueue, or make a handler fail, writes no lines of their own into a worker's log."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker
from tests.support import wait_until

FORGED = "\n2026-01-01 00:00:00,000 CRITICAL sqlane_sa.worker: forged\r\x1b[2J\u2028\x85"


def test_ids_names_and_messages_stay_within_their_line(
    engine: sa.Engine, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """In each line that names a job: a retry, a failure for good, a stall, a failure job that cannot be added."""
    caplog.set_level(logging.INFO)

    @queue.job("n", max_attempts=2, backoff=lambda attempt: 0, failure_job="after", max_stalls=0)
    def fail(payload: object) -> None:
        raise ValueError("first" + FORGED.replace("\n", "\r"))

    queue.define("after", mutex_keys=lambda payload: 1 / 0)
    queue.define("name" + FORGED)
    with engine.begin() as conn:
        queue.enqueue(conn, "n", id="id" + FORGED)
        queue.enqueue(conn, "name" + FORGED, id="stalled" + FORGED)
        conn.execute(
            sa.text(
                "UPDATE sqlane_jobs SET status = 'running', lock_token = 't', locked_by = :by,"
                " locked_until = statement_timestamp() - interval '1 s' WHERE id LIKE 'stalled%'"
            ),
            {"by": "holder" + FORGED},
        )
    with Worker(engine, queue, sweep_interval=0.1, poll_interval=0.1):
        status = sa.text("SELECT count(*) FROM sqlane_jobs WHERE status = 'failed' OR stalls > 0")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            wait_until(lambda: conn.scalar(status) == 2)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("sqlane_sa")]
    assert all(message.isprintable() for message in messages), messages
    assert sum(r"id\n2026-01-01" in message for message in messages) >= 3
    assert any(r"stalled\n2026" in message and r"holder\n2026" in message for message in messages)


def test_a_traceback_keeps_its_lines(engine: sa.Engine, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG, where it is shown; and a terminal obeys nothing in it."""
    caplog.set_level(logging.DEBUG, "sqlane_sa")

    @queue.job("n", max_attempts=1)
    def fail(payload: object) -> None:
        raise ValueError from KeyError("cause\x1b[2J")

    with engine.begin() as conn:
        queue.enqueue(conn, "n")
    Worker(engine, queue).run_until_idle()
    [text] = [
        record.getMessage()
        for record in caplog.records
        if "Traceback" in record.getMessage() or "in fail" in record.getMessage()
    ]
    assert text.count("\n") > 3
    assert "\x1b" not in text
