"""What a handler leaves to happen to its thread or its event loop stops no other job."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker
from tests.support import wait_until


def throw_into(thread: int) -> None:
    """As libraries do that time out the code of a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeoutError))


def test_an_exception_that_comes_when_the_handler_has_returned(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, sql: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread waits for the next job then, which has to be run."""
    threads: list[int] = []
    ran: list[Any] = []
    queue.job("first")(lambda payload: threads.append(threading.get_ident()))
    queue.job("good")(ran.append)
    enqueue("first")
    worker = work(concurrency=1, lease=60)
    wait_until(lambda: len(threads) == 1 and len(worker._parts.jobs) == 0)
    wait_until(lambda: worker._parts.handlers._idle_threads == 1)
    throw_into(threads[0])
    for n in range(3):
        enqueue("good", n)
    wait_until(lambda: ran == [0, 1, 2])
    wait_until(lambda: sql("SELECT DISTINCT status, attempts, stalls FROM sqlane_jobs") == [("completed", 1, 0)])
    assert "TimeoutError came to a thread whose handler had returned" in caplog.text


@pytest.mark.parametrize("moment", ["before its result is known", "before its slot is free", "after that"])
def test_an_exception_in_the_moment_after_a_handler(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its job ends, and the slot goes on to the next."""
    ran: list[Any] = []
    queue.job("good")(ran.append)
    worker = work(concurrency=1, lease=60)
    handlers = worker._parts.handlers
    broken: list[bool] = []

    def once(before: Any, after: Any) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not broken:
                broken.append(True)
                if after is not None:
                    after(*args, **options)
                raise TimeoutError
            return before(*args, **options)

        return call

    if moment == "before its result is known":
        monkeypatch.setattr(handlers, "_run", once(handlers._run, None))
    elif moment == "before its slot is free":
        monkeypatch.setattr(handlers, "_next", once(handlers._next, None))
    else:
        monkeypatch.setattr(worker._parts.jobs, "finish", once(worker._parts.jobs.finish, worker._parts.jobs.finish))
    for n in range(3):
        enqueue("good", n)
    wait_until(lambda: sql("SELECT DISTINCT status, attempts, stalls FROM sqlane_jobs") == [("completed", 1, 0)])
    assert sorted(ran) == [0, 1, 2]
    assert handlers.active == 0


def refusing(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    raise RuntimeError("no more tasks")


def without_context(loop: asyncio.AbstractEventLoop, coroutine: Any) -> Any:
    return asyncio.Task(coroutine, loop=loop)


@pytest.mark.parametrize("what", ["fills", "replaces", "shuts down"])
def test_a_default_executor_of_a_handlers(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, sql: Any, what: str
) -> None:
    """Large payloads are read without it."""
    go = threading.Event()

    @queue.job("takes")
    async def takes(payload: Any) -> None:
        loop = asyncio.get_running_loop()
        if what == "fills":
            for _ in range(100):
                loop.run_in_executor(None, go.wait, 60)
        elif what == "replaces":
            executor = ThreadPoolExecutor(1)
            executor.shutdown()
            loop.set_default_executor(executor)
        else:
            await loop.shutdown_default_executor()

    ran: list[int] = []

    @queue.job("large", max_attempts=1)
    async def large(payload: Any) -> None:
        ran.append(len(payload))

    enqueue("takes")
    work(concurrency=2, lease=60)
    wait_until(lambda: sql("SELECT status FROM sqlane_jobs") == [("completed",)])
    for _ in range(3):
        enqueue("large", "x" * 100_000)
    wait_until(lambda: ran == [100_000] * 3)
    go.set()


def test_a_payload_for_which_there_is_no_thread(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The job is released and uses no attempt; and the threads that read payloads end with their worker."""
    ran: list[int] = []

    @queue.job("large", max_attempts=1)
    async def large(payload: Any) -> None:
        ran.append(len(payload))

    worker = work(concurrency=2, lease=60)
    submit = ThreadPoolExecutor.submit
    refused: list[bool] = []

    def submit_later(executor: ThreadPoolExecutor, *args: Any, **options: Any) -> Any:
        if not refused:
            refused.append(True)
            raise RuntimeError("can't start new thread")
        return submit(executor, *args, **options)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_later)
    enqueue("large", "x" * 100_000)
    wait_until(lambda: ran == [100_000])
    wait_until(lambda: sql("SELECT status, attempts, stalls FROM sqlane_jobs") == [("completed", 1, 0)])
    assert "its payload could not be read: RuntimeError: can't start new thread" in caplog.text
    reading = [thread for thread in threading.enumerate() if thread.name.startswith("sqlane-payload")]
    assert reading
    worker.stop()
    for thread in reading:
        thread.join(60)
        assert not thread.is_alive()


FACTORIES = {"refuses": refusing, "knows no context": without_context}
if sys.version_info >= (3, 12):
    FACTORIES["eager"] = asyncio.eager_task_factory


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_a_task_factory_of_a_handlers(
    queue: Queue, work: Callable[..., Worker], enqueue: Any, engine: sa.Engine, sql: Any, factory: Any
) -> None:
    """It is for the tasks of handlers, and not for those in which handlers run."""

    @queue.job("sets")
    async def sets(payload: Any) -> None:
        asyncio.get_running_loop().set_task_factory(factory)

    ran: list[Any] = []

    @queue.job("good")
    async def good(payload: Any) -> None:
        await asyncio.sleep(0)
        ran.append(payload)

    enqueue("sets")
    work(concurrency=2, lease=60)
    wait_until(lambda: sql("SELECT status FROM sqlane_jobs") == [("completed",)])
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("good", n) for n in range(500)))
    wait_until(lambda: len(ran) == 500)
    wait_until(lambda: sql("SELECT DISTINCT status, attempts FROM sqlane_jobs") == [("completed", 1)])


def test_tasks_that_cannot_be_made(
    queue: Queue,
    work: Callable[..., Worker],
    engine: sa.Engine,
    sql: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where a library has replaced their class. Each gives its slot and its job back, and the stack does not grow
    with those that wait."""
    refused: list[None] = []
    task_class = asyncio.Task

    def refuse(*args: Any, **options: Any) -> Any:
        if len(refused) == 1500:
            return task_class(*args, **options)
        refused.append(None)
        raise RuntimeError("no more tasks")

    ran: list[Any] = []

    @queue.job("good")
    async def good(payload: Any) -> None:
        ran.append(payload)

    queue.job("in a thread")(ran.append)
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("good", n) for n in range(1500)))
        queue.enqueue_many(conn, (queue.new("in a thread", n) for n in range(1500, 1510)))
    monkeypatch.setattr(asyncio, "Task", refuse)
    worker = work(concurrency=2, lease=60)
    wait_until(lambda: sql("SELECT DISTINCT status, attempts FROM sqlane_jobs") == [("completed", 1)])
    assert sorted(ran) == list(range(1510))
    assert worker._parts.handlers.active == 0
    assert "RuntimeError: no more tasks" in caplog.text
