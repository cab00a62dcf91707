"""However a drain ends, it leaves no job running: another drain or worker goes on at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import JobContext, Queue
from sqlane_sa.testing import DrainResult, drain
from tests.support import wait_until

STATES = "SELECT job_name, status, attempts, count(*) FROM sqlane_jobs GROUP BY 1, 2, 3 ORDER BY 1"


def states(engine: sa.Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM sqlane_mutexes")) == 0
        return [tuple(row) for row in conn.execute(sa.text(STATES))]


def add(engine: sa.Engine, queue: Queue, first: str) -> None:
    """The first job, and three behind it with keys of their own."""
    with engine.begin() as conn:
        others = [queue.new("other", n, mutex_keys=[f"k{n}"]) for n in range(3)]
        queue.enqueue_many(conn, [queue.new(first, mutex_keys=["first"], priority=-1), *others])


@pytest.fixture(autouse=True)
def other(queue: Queue) -> None:
    queue.job("other")(lambda payload: None)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a process that a person started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_by_an_error_of_a_handler(queue: Queue, engine: sa.Engine) -> None:
    @queue.job("bad")
    def bad(payload: Any) -> None:
        raise ValueError("bad")

    add(engine, queue, "bad")
    with pytest.raises(ValueError, match="bad"):
        drain(engine, queue, raise_errors=True)
    assert states(engine) == [("bad", "pending", 1, 1), ("other", "pending", 0, 3)]
    assert drain(engine, queue).completed == 3


def test_only_the_job_whose_turn_it_is_is_running(queue: Queue, engine: sa.Engine) -> None:
    """So that a process that is killed leaves one job to its lease, and not those behind it."""
    seen: list[Any] = []

    @queue.job("looks")
    def looks(payload: Any) -> None:
        with engine.connect() as conn:
            running = conn.scalars(sa.text("SELECT job_name FROM sqlane_jobs WHERE status = 'running'"))
            seen.append((list(running), list(conn.scalars(sa.text("SELECT mutex_key FROM sqlane_mutexes")))))

    add(engine, queue, "looks")
    assert drain(engine, queue).completed == 4
    assert seen == [(["looks"], ["first"])]


@pytest.mark.parametrize("fate", ["returns", "raises"])
def test_by_a_lost_connection(queue: Queue, engine: sa.Engine, database_url: str, fate: str) -> None:
    """The result is written by the next connection, if there is one."""
    apart = sa.create_engine(database_url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")

    @queue.job("cuts")
    def cuts(payload: Any) -> None:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with apart.connect() as conn:
            conn.execute(sa.text(f"SELECT pg_terminate_backend(pid) {others}"))
            wait_until(lambda: not conn.scalar(sa.text(f"SELECT count(*) {others}")))
        if fate == "raises":
            raise ValueError

    add(engine, queue, "cuts")
    with pytest.raises(sa.exc.OperationalError):
        drain(engine, queue)
    first = ("cuts", "completed", 1, 1) if fate == "returns" else ("cuts", "pending", 1, 1)
    assert states(engine) == [first, ("other", "pending", 0, 3)]


@pytest.mark.parametrize("transactional", [False, True])
def test_by_an_interrupt(queue: Queue, engine: sa.Engine, interruptible: None, transactional: bool) -> None:
    """Nobody's attempt: the job keeps its place."""

    @queue.job("interrupted", max_attempts=1, transactional=transactional)
    def interrupted(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue("other", "from the handler")
        interrupt()

    add(engine, queue, "interrupted")
    with pytest.raises(KeyboardInterrupt):
        drain(engine, queue)
    others = ("other", "pending", 0, 3 if transactional else 4)
    assert states(engine) == [("interrupted", "pending", 0, 1), others]


def test_by_an_interrupt_on_a_connection(queue: Queue, conn: sa.Connection, interruptible: None) -> None:
    queue.job("interrupted")(lambda payload: interrupt())
    job = queue.enqueue(conn, "interrupted")
    with pytest.raises(KeyboardInterrupt):
        drain(conn, queue)
    found = queue.get(conn, job.id)
    assert found and (found.status, found.attempts) == ("pending", 0)


@pytest.mark.parametrize("within_a_loop", [False, True])
def test_an_interrupt_cancels_an_async_handler(
    queue: Queue, engine: sa.Engine, interruptible: None, within_a_loop: bool
) -> None:
    ended: list[str] = []

    @queue.job("waits")
    async def waits(payload: Any) -> None:
        try:
            asyncio.get_running_loop().call_soon(interrupt)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        drain(engine, queue)

    add(engine, queue, "waits")
    with pytest.raises(KeyboardInterrupt):
        if within_a_loop:
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(main())
            finally:
                loop.close()
        else:
            drain(engine, queue)
    assert ended == ["cancelled"]
    assert states(engine) == [("other", "pending", 0, 3), ("waits", "pending", 0, 1)]


def test_an_interrupt_that_a_handler_survives(queue: Queue, engine: sa.Engine, interruptible: None) -> None:
    """Its result is written, and the drain ends all the same where it can know."""

    @queue.job("survives")
    async def survives(payload: Any) -> None:
        try:
            asyncio.get_running_loop().call_soon(interrupt)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    add(engine, queue, "survives")
    with pytest.raises(KeyboardInterrupt):
        drain(engine, queue)
    assert states(engine) == [("other", "pending", 0, 3), ("survives", "completed", 1, 1)]


def test_many_jobs_of_one_key(queue: Queue, conn: sa.Connection) -> None:
    """More than a window of them, in their order."""
    order: list[int] = []
    queue.job("keyed")(order.append)
    queue.enqueue_many(conn, [queue.new("keyed", n, mutex_keys=["k"]) for n in range(60)])
    queue.enqueue_many(conn, [queue.new("keyed", n, mutex_keys=[f"k{n}"], priority=1) for n in range(60, 80)])
    assert drain(conn, queue) == DrainResult(80, 0, 0, 0, remaining=0)
    assert [n for n in order if n < 60] == list(range(60))
    assert sorted(order) == list(range(80))
