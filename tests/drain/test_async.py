"""Drain on an async connection: async handlers run in the caller's loop, and on the caller's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from sqlane_sa import HandleError, JobContext, Queue
from sqlane_sa.testing import DrainResult, drain
from tests.support import with_driver

Body = Callable[[AsyncConnection], Awaitable[None]]


@pytest.fixture(params=["asyncpg", "psycopg"])
def within(request: pytest.FixtureRequest, database_url: str) -> Callable[[Body], None]:
    """Runs an async function on a connection whose transaction is rolled back."""

    async def run(body: Body) -> None:
        engine = create_async_engine(with_driver(database_url, request.param))
        async with engine.connect() as conn:
            await body(conn)
        await engine.dispose()

    return lambda body: asyncio.run(run(body))


def test_a_handler_enqueues(queue: Queue, within: Callable[[Body], None]) -> None:
    ran: list[Any] = []

    @queue.job("parent")
    async def parent(payload: Any, ctx: JobContext) -> None:
        await asyncio.sleep(0)
        ctx.enqueue("child", "first")
        async with asyncio.timeout(60):
            await asyncio.to_thread(ran.append, "thread")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        ctx.enqueue("child", "second")

    @queue.job("child")
    def child(payload: Any) -> None:
        ran.append(payload)

    async def body(conn: AsyncConnection) -> None:
        await queue.aenqueue(conn, "parent")
        assert await conn.run_sync(drain, queue, raise_errors=True) == DrainResult(3, 0, 0, 0, remaining=0)

    within(body)
    assert ran == ["thread", "first", "second"]


def test_a_handler_shares_the_callers_loop(queue: Queue, within: Callable[[Body], None]) -> None:
    @queue.job("answers")
    async def answers(payload: Any) -> None:
        asked.get_nowait().set_result(asyncio.get_running_loop())

    asked: asyncio.Queue[asyncio.Future[object]] = asyncio.Queue()

    async def body(conn: AsyncConnection) -> None:
        answer = asyncio.get_running_loop().create_future()
        asked.put_nowait(answer)
        await queue.aenqueue(conn, "answers")
        await conn.run_sync(drain, queue, raise_errors=True)
        assert answer.result() is asyncio.get_running_loop()

    within(body)


@pytest.mark.parametrize("elsewhere", ["thread", "task"])
def test_threads_and_tasks_of_a_handler_cannot_share_it(
    queue: Queue, within: Callable[[Body], None], elsewhere: str
) -> None:
    @queue.job("parent")
    async def parent(payload: Any, ctx: JobContext) -> None:
        async def task() -> None:
            ctx.enqueue("parent")

        await (asyncio.to_thread(ctx.enqueue, "parent") if elsewhere == "thread" else asyncio.create_task(task()))

    async def body(conn: AsyncConnection) -> None:
        await queue.aenqueue(conn, "parent")
        with pytest.raises(HandleError, match="not in threads or tasks"):
            await conn.run_sync(drain, queue, raise_errors=True)
        assert await conn.scalar(sa.text("SELECT attempts FROM sqlane_jobs")) == 1

    within(body)


@pytest.mark.parametrize("survives", [False, True])
def test_a_cancellation_of_the_caller_ends_it(queue: Queue, within: Callable[[Body], None], survives: bool) -> None:
    """It reaches the handler; the transaction is as usable as before."""

    async def body(conn: AsyncConnection) -> None:
        started = asyncio.Event()

        @queue.job("waits", max_attempts=1)
        async def waits(payload: Any) -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not survives:
                    raise

        await queue.aenqueue_many(conn, [queue.new("waits"), queue.new("waits")])
        task = asyncio.create_task(conn.run_sync(drain, queue))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rows = await conn.execute(sa.text("SELECT status, attempts FROM sqlane_jobs ORDER BY id"))
        first = ("completed", 1) if survives else ("pending", 0)
        assert [tuple(row) for row in rows] == [first, ("pending", 0)]

    within(body)


def test_a_handler_that_cancels_itself_has_failed(queue: Queue, within: Callable[[Body], None]) -> None:
    @queue.job("cancels", max_attempts=1)
    async def cancels(payload: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def body(conn: AsyncConnection) -> None:
        await queue.aenqueue(conn, "cancels")
        assert await conn.run_sync(drain, queue) == DrainResult(0, 0, failed=1, released=0, remaining=0)

    within(body)


def test_outside_of_run_sync(queue: Queue, within: Callable[[Body], None]) -> None:
    queue.job("n")(lambda payload: None)

    async def body(conn: AsyncConnection) -> None:
        with pytest.raises(HandleError, match=r"await conn\.run_sync\(drain, queue\)"):
            drain(conn.sync_connection, queue)  # type: ignore[arg-type]

    within(body)
