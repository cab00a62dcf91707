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
            refer(ctx.connection, ctx.id)
        else:
            with engine.begin() as conn:
                refer(conn, ctx.id)

    id_ = enqueue("note")
    work(lease=1.0)
    assert referred.wait(60)
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


def test_jobs_that_are_referred_to_outlive_their_retention(
    queue: Queue, work: Any, enqueue: Any, engine: sa.Engine, sql: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their neighbours go, and what expires later; once they are referred to no more and it is time, they go too."""
    sql("CREATE TABLE notes (job_id text REFERENCES sqlane_jobs (id))")
    queue.job("n")(lambda payload: None)
    ids = [enqueue("n") for _ in range(40)]
    kept = {ids[0], *ids[7:10], ids[-1]}
    worker = work(sweep_interval=0.1)
    wait_until(lambda: sql("SELECT FROM sqlane_jobs WHERE status = 'completed' HAVING count(*) = 40"))
    with engine.begin() as conn:
        for id_ in kept:
            conn.execute(REFER, {"id": id_})
        conn.exec_driver_sql("UPDATE sqlane_jobs SET expires_at = now() - interval '1 hour'")
    wait_until(lambda: {row.id for row in sql("SELECT id FROM sqlane_jobs")} == kept)
    wait_until(lambda: f"expired jobs cannot be deleted and stay for now: 5, the first is job {ids[0]}" in caplog.text)
    assert "violates foreign key constraint" in caplog.text
    later = enqueue("n")
    wait_until(lambda: sql("SELECT FROM sqlane_jobs WHERE id = :id AND status = 'completed'", id=later))
    sql("UPDATE sqlane_jobs SET expires_at = now() WHERE id = :id", id=later)
    wait_until(lambda: {row.id for row in sql("SELECT id FROM sqlane_jobs")} == kept)
    assert caplog.text.count("cannot be deleted") == 1
    assert worker.failure is None
    sql("DELETE FROM notes")
    monkeypatch.setattr("sqlane_sa.worker.undeletable.RETRY_AFTER", 0.0)
    wait_until(lambda: not sql("SELECT id FROM sqlane_jobs"))


def test_a_retention_of_nothing_and_a_reference_in_an_open_transaction(
    queue: Queue, work: Any, enqueue: Any, engine: sa.Engine, sql: Any
) -> None:
    """The deletion has to wait for it; the neighbours do not, and the job has run once."""
    sql("CREATE TABLE notes (job_id text REFERENCES sqlane_jobs (id) ON DELETE CASCADE)")
    go = threading.Event()
    starts: list[str] = []

    @queue.job("gone", completed_retention=0)
    def gone(payload: Any, ctx: JobContext) -> None:
        starts.append(ctx.id)
        assert go.wait(60)

    queue.job("neighbour", completed_retention=0)(lambda payload: None)
    id_ = enqueue("gone")
    work(lease=60.0)
    wait_until(lambda: starts)
    with engine.connect() as rival:
        rival.execute(REFER, {"id": id_})
        go.set()
        for _ in range(3):
            neighbour = enqueue("neighbour")
            wait_until(lambda: not sql("SELECT FROM sqlane_jobs WHERE id = :id", id=neighbour))  # noqa: B023
        assert sql("SELECT id FROM sqlane_jobs") == [(id_,)]
        rival.commit()
    wait_until(lambda: not sql("SELECT id FROM sqlane_jobs"))
    assert starts == [id_]
