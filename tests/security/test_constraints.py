"""What the application adds to the queue's tables may refuse a write, and the database's error then shows the row: of
such an error the first line is in the log, and nothing of the row."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, store
from tests.support import wait_until

CANARY = "canary-row-9d2c"
CHECK = "ALTER TABLE sqlane_jobs ADD CHECK "

# What the application adds, the job to run, and what is said then.
REFUSALS = {
    "claim": (CHECK + "(status <> 'running')", "good", "cannot be claimed and is left alone"),
    "result": (CHECK + "(status <> 'completed')", "good", "its result could not be written"),
    "any result": (CHECK + "(status = 'running' OR attempts = 0)", "good", "no result can be stored"),
    "mark": (CHECK + "(timed_out_at IS NULL)", "slow", "cannot be marked as stuck"),
    "recovery": (CHECK + "(stalls = 0)", "stale", "stalled and cannot be recovered"),
    "deletion": (
        f"CREATE TABLE orders (secret text DEFAULT '{CANARY}',"
        " job text NOT NULL REFERENCES sqlane_jobs (id) ON DELETE SET NULL)",
        "brief",
        "expired jobs cannot be deleted",
    ),
    "failure job": (CHECK + "(job_name <> 'after')", "bad", "its failure job was not added"),
    "payload of a failure job": (
        "ALTER TABLE sqlane_payloads ADD CHECK (payload ->> 'attempt' IS NULL)",
        "bad",
        "its failure job was not added",
    ),
}
TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'not now' USING ERRCODE = '57P01', DETAIL = NEW.secret; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW WHEN (NEW.status = 'STATUS')
    EXECUTE FUNCTION refuse()"""
REFUSALS |= {
    "outage": (TRIGGER.replace("STATUS", "running"), "good", "trying again until it works"),
    "result for now": (TRIGGER.replace("STATUS", "completed"), "good", "the database refuses for now"),
}


@pytest.fixture
def details() -> Iterator[list[str]]:
    """What the database said beside the first lines of its errors."""
    found: list[str] = []

    def note(context: sa.engine.ExceptionContext) -> None:
        found.append(str(getattr(getattr(context.original_exception, "diag", None), "message_detail", None)))

    sa.event.listen(sa.Engine, "handle_error", note)
    yield found
    sa.event.remove(sa.Engine, "handle_error", note)


@pytest.fixture
def go(queue: Queue) -> Iterator[threading.Event]:
    """Set at the end: it is what the slow job waits for."""
    event = threading.Event()
    for name in ("good", "stale"):
        queue.job(name)(lambda payload: None)
    queue.job("brief", completed_retention=0.001)(lambda payload: None)

    @queue.job("slow", timeout=0.05)
    def slow(payload: Any) -> None:
        assert event.wait(60)

    @queue.job("bad", max_attempts=1, failure_job="after")
    def bad(payload: Any) -> None:
        raise ValueError("no secret")

    queue.define("after")
    yield event
    event.set()


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_row_that_is_refused_is_in_no_log(
    engine: sa.Engine,
    queue: Queue,
    go: threading.Event,
    details: list[str],
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """At any level."""
    caplog.set_level(logging.DEBUG, "sqlane_sa")
    ddl, name, says = REFUSALS[kind]
    with engine.begin() as conn:
        id_ = queue.enqueue(conn, name, {"secret": CANARY}, id="1").id
        conn.exec_driver_sql(f"ALTER TABLE sqlane_jobs ADD secret text DEFAULT '{CANARY}'")
        if name == "stale":
            by: Any = {"lock_token": "dead", "locked_by": "dead", "lease": 0.001}
            store.claim(conn, queue.tables, candidate_ids=[id_], **by)
        conn.exec_driver_sql(ddl)
        if kind == "deletion":
            conn.execute(sa.text("INSERT INTO orders (job) VALUES (:id)"), {"id": id_})
    with Worker(engine, queue, sweep_interval=0.1, poll_interval=0.05, shutdown_timeout=0.1):
        wait_until(lambda: says in caplog.text, message=says)
        go.set()
    assert any(CANARY in detail for detail in details)
    assert CANARY not in caplog.text
