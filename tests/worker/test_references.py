"""Handlers that write rows which refer to their own job, in transactions that last longer than its lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue
from tests.support import wait_until

REFER = sa.text("INSERT INTO notes VALUES (:id)")


@pytest.mark.parametrize("transactional", [False, True], ids=["of its own", "transactional"])
def test_a_reference_in_an_open_transaction(
    queue: Queue, work: Any, enqueue: Any, engine: sa.Engine, job: Callable[[str], Job], sql: Any, transactional: bool
) -> None:
    """The lease is renewed while the foreign key holds its lock on the row; every job runs once."""
    sql("CREATE TABLE notes (job_id text REFERENCES sqlane_jobs (id))")
    referred, go = threading.Event(), threading.Event()
    starts: list[str] = []

    def refer(conn: sa.Connection, id_: str) -> None:
        starts.append(id_)
        conn.execute(REFER, {"id": id_})
        referred.set()
        assert go.wait(60)

    @queue.job("note", transactional=transactional)
    def note(payload: Any, ctx: JobContext) -> None:
        if transactional:
            return refer(ctx.connection, ctx.id)
        with engine.begin() as conn:
            refer(conn, ctx.id)

    id_ = enqueue("note")
    work(lease=1.0)
    assert referred.wait(30)
    for _ in range(3):
        before = lease_end(sql)
        wait_until(lambda before=before: lease_end(sql) > before)  # type: ignore[misc]
    go.set()
    wait_until(lambda: job(id_).status == "completed")
    assert starts == [id_]
    assert sql("SELECT job_id FROM notes") == [(id_,)]


def lease_end(sql: Any) -> Any:
    [row] = sql("SELECT locked_until FROM sqlane_jobs")
    return row.locked_until
