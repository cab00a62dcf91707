"""Drain: everything due, in this process; on a connection inside the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import Discard, HandleError, JobContext, PayloadError, Queue, Snooze
from sqlane_sa.testing import DrainResult, drain
from tests.support import with_driver


@pytest.fixture
def ran(queue: Queue) -> Iterator[list[Any]]:
    """What the handlers of a small queue did, in order."""
    ran: list[Any] = []

    @queue.job("task", max_attempts=3, failure_job="reaction", backoff=lambda attempt: 60)
    def task(payload: Any, ctx: JobContext) -> None:
        ran.append((payload, ctx.attempt))
        if payload == "bad":
            raise ValueError("bad")
        if payload == "discard":
            raise Discard("no")
        if payload == "snooze":
            raise Snooze(60)
        if payload == "parent":
            ctx.enqueue("task", "child")

    @queue.job("reaction")
    async def reaction(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(("reaction", payload["payload"]))

    return ran


def test_inside_a_rolled_back_transaction(queue: Queue, ran: list[Any], engine: sa.Engine) -> None:
    with engine.connect() as conn:
        for payload in ("good", "bad", "discard", "snooze", "parent"):
            queue.enqueue(conn, "task", payload)
        queue.enqueue(conn, "task", "later", delay=60)
        assert drain(conn, queue) == DrainResult(completed=4, retried=1, failed=1, released=1, remaining=3)
        conn.rollback()
    expected = [
        ("good", 1),
        ("bad", 1),
        ("discard", 1),
        ("snooze", 1),
        ("parent", 1),
        ("child", 1),
        ("reaction", "discard"),
    ]
    assert sorted(ran, key=str) == sorted(expected, key=str)
    with engine.connect() as conn:
        assert queue.stats(conn) == {}
        assert conn.scalar(sa.text("SELECT count(*) FROM sqlane_jobs")) == 0


def test_on_an_engine_each_step_commits(queue: Queue, ran: list[Any], engine: sa.Engine) -> None:
    with engine.begin() as conn:
        id_ = queue.enqueue(conn, "task", "good").id
    assert drain(engine, queue).completed == 1
    with engine.connect() as conn:
        assert queue.get(conn, id_).status == "completed"  # type: ignore[union-attr]


def test_include_delayed_runs_jobs_to_their_end(queue: Queue, ran: list[Any], conn: sa.Connection) -> None:
    queue.enqueue(conn, "task", "bad")
    queue.enqueue(conn, "task", "snooze")
    queue.enqueue(conn, "task", "later", run_at=datetime(2100, 1, 1, tzinfo=UTC))
    result = drain(conn, queue, include_delayed=True)
    assert result == DrainResult(completed=2, retried=2, failed=1, released=1, remaining=1)
    assert [one for one in ran if one[0] == "bad"] == [("bad", 1), ("bad", 2), ("bad", 3)]


def test_limit_and_names(queue: Queue, ran: list[Any], conn: sa.Connection) -> None:
    queue.job("other")(lambda payload: ran.append("other"))
    queue.enqueue_many(conn, [queue.new("task", n) for n in range(5)] + [queue.new("other")])
    assert drain(conn, queue, limit=2, names=["task"]) == DrainResult(2, 0, 0, 0, remaining=3)
    assert ran == [(0, 1), (1, 1)]
    assert drain(conn, queue, names=["other"]).completed == 1
    assert drain(conn, queue, limit=0) == DrainResult(0, 0, 0, 0, remaining=3)


def test_raise_errors(queue: Queue, ran: list[Any], conn: sa.Connection) -> None:
    id_ = queue.enqueue(conn, "task", "bad").id
    with pytest.raises(ValueError, match="bad"):
        drain(conn, queue, raise_errors=True)
    assert queue.get(conn, id_).attempts == 1  # type: ignore[union-attr]


def test_a_transactional_handler_has_a_savepoint_of_the_callers_transaction(queue: Queue, conn: sa.Connection) -> None:
    @queue.job("write", transactional=True, max_attempts=1)
    def write(payload: Any, ctx: JobContext) -> None:
        ctx.session.execute(sa.text("INSERT INTO effects VALUES (:n)"), {"n": payload})
        if payload == 2:
            ctx.session.execute(sa.text("SELECT 1 / 0"))

    conn.exec_driver_sql("CREATE TABLE effects (n int)")
    queue.enqueue_many(conn, [queue.new("write", n) for n in (1, 2, 3)])
    assert drain(conn, queue) == DrainResult(completed=2, retried=0, failed=1, released=0, remaining=0)
    assert list(conn.scalars(sa.text("SELECT n FROM effects ORDER BY n"))) == [1, 3]


def test_on_the_connection_of_a_session(queue: Queue, ran: list[Any], conn: sa.Connection) -> None:
    with Session(conn, join_transaction_mode="create_savepoint") as session:
        queue.enqueue(session, "task", "good")
        session.commit()
    assert drain(conn, queue).completed == 1


def test_within_an_event_loop(queue: Queue, ran: list[Any], database_url: str) -> None:
    async def main() -> DrainResult:
        engine = create_async_engine(with_driver(database_url, "asyncpg"))
        async with engine.connect() as conn:
            await queue.aenqueue(conn, "task", "discard")
            result = await conn.run_sync(drain, queue)
        await engine.dispose()
        return result

    assert asyncio.run(main()) == DrainResult(completed=1, retried=0, failed=1, released=0, remaining=0)
    assert ran == [("discard", 1), ("reaction", "discard")]


def test_keys_keep_their_order(queue: Queue, ran: list[Any], conn: sa.Connection) -> None:
    queue.enqueue_many(conn, [queue.new("task", n, mutex_keys=["k"], priority=-n) for n in range(5)])
    assert drain(conn, queue).completed == 5
    assert ran == [(n, 1) for n in range(5)]


def test_the_same_refusals_as_for_a_worker(
    queue: Queue, ran: list[Any], conn: sa.Connection, database_url: str
) -> None:
    """I105"""
    for payload in (datetime.now(UTC), {1: 2}):
        with pytest.raises(PayloadError):
            queue.enqueue(conn, "task", payload)
    assert drain(conn, queue) == DrainResult(0, 0, 0, 0, 0)
    for wrong in (create_async_engine(database_url), Session(conn), None):
        with pytest.raises(HandleError, match="Connection or an Engine"):
            drain(wrong, queue)  # type: ignore[arg-type]
