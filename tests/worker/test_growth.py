"""A worker does not grow, whatever its jobs fail with."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, testing
from sqlane_sa.values.failure import MAX_MESSAGE_CHARS
from sqlane_sa.worker.running import RunningJob
from tests.benchmarks.failing import KINDS, MAX_ERROR_BYTES, Ballast, LargeError, fail, message
from tests.support import wait_until

CONCURRENCY = 4
ROUND = 1_000
ROUNDS = 3
SMALL = 100
"""So many items of a collection are looked into."""
PATIENCE = 100.0


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles stay: what the garbage collector alone would free is found by counting."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())


def define(queue: Queue, kind: str) -> None:
    options: Any = {"max_attempts": 1, "timeout": 600, "transactional": kind == "transactional"}

    async def fail_async(n: int) -> None:
        fail(n)

    def fail_late(n: int, ctx: Any) -> None:
        assert ctx.cancelled.wait(60)
        fail(n)

    if kind == "late":
        queue.job("failing", max_attempts=1, timeout=0.01)(fail_late)
    else:
        queue.job("failing", **options)(fail_async if kind == "async" else fail)


@pytest.mark.parametrize("kind", ["def", "async", "transactional", "late"])
def test_failures_leave_no_frames_behind(
    queue: Queue, engine: sa.Engine, work: Any, sql: Callable[..., list[Any]], no_collector: None, kind: str
) -> None:
    """D50: the locals of a failed handler are free when its result is written, without the garbage collector."""
    define(queue, kind)
    before = alive(Ballast)
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("failing", n) for n in range(8 * len(KINDS))])
    worker = work(concurrency=CONCURRENCY)
    wait_until(lambda: at_rest(worker))
    assert alive(Ballast) == before
    assert sql("SELECT count(*) AS n FROM sqlane_jobs WHERE status = 'failed'")[0].n == 8 * len(KINDS)


def test_failures_of_a_drain_leave_no_frames_behind(queue: Queue, engine: sa.Engine, no_collector: None) -> None:
    define(queue, "def")
    before = alive(Ballast)
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("failing", n) for n in range(len(KINDS))])
    assert testing.drain(engine, queue).failed == len(KINDS)
    assert alive(Ballast) == before


def test_a_worker_holds_what_it_held_after_the_first_jobs(
    queue: Queue, engine: sa.Engine, work: Any, sql: Callable[..., list[Any]]
) -> None:
    """Half of the jobs fail, in every kind of handler: its collections, jobs, threads and files stay as many."""
    ran = define_all(queue)
    worker = work(concurrency=CONCURRENCY, lease=60)
    held: list[dict[str, int]] = []
    for done in range(ROUND, ROUND * ROUNDS + 1, ROUND):
        with engine.begin() as conn:
            queue.enqueue_many(conn, [queue.new(name_of(n), n) for n in range(done - ROUND, done)])
        wait_until(lambda done=done: len(ran) == done and at_rest(worker), PATIENCE)  # type: ignore[misc]
        held.append(sizes(worker) | processes() | {"running jobs": alive(RunningJob)})
    assert any(path.endswith(".jobs._held") for path in held[0]), "the collections are somewhere else now"
    # What keeps each job that failed has half of all by now.
    grown = {path: (held[0].get(path, 0), n) for path, n in held[-1].items() if n > max(held[0].get(path, 0), ROUND)}
    assert not grown
    assert held[-1]["threads"] == held[0]["threads"]
    assert held[-1]["files"] <= held[0]["files"] + 2
    assert sql("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory'")[0].n == 0
    assert sql("SELECT count(*) AS n FROM sqlane_jobs WHERE status = 'failed'")[0].n == ROUND * ROUNDS / 2


def define_all(queue: Queue) -> list[int]:
    """The payloads of the handlers that began."""
    ran: list[int] = []

    def failing(n: int) -> None:
        ran.append(n)
        fail(n)

    async def failing_async(n: int) -> None:
        failing(n)

    options: Any = {"max_attempts": 1, "timeout": 600}
    for name, function in (("failing", failing), ("fine", ran.append)):
        queue.job(name, **options)(function)
        queue.job(f"{name}, transactional", transactional=True, **options)(function)
        queue.job(f"{name}, keyed", mutex_keys=lambda n: [f"key:{n}"], **options)(function)
    queue.job("failing, async", **options)(failing_async)
    return ran


def name_of(n: int) -> str:
    """Each seventh of a kind: five kinds of failure come to all of them."""
    if n % 2 and n // 2 % 7 == 2:
        return "failing, async"
    return ("failing" if n % 2 else "fine") + {0: ", transactional", 1: ", keyed"}.get(n // 2 % 7, "")


def test_a_stored_error_is_capped_and_cut_between_characters(queue: Queue, engine: sa.Engine, run: Any) -> None:
    define(queue, "def")
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("failing", n) for n in range(4 * len(KINDS))])
    run()
    for n, text in last_errors(engine).items():
        assert len(text.encode()) <= MAX_ERROR_BYTES
        error = json.loads(text)
        assert set(error) == {"type", "message", "traceback", "attempt"}
        if KINDS[n % len(KINDS)].__name__ == "long_message":
            # Of one to four bytes a character: the cuts of these jobs fall on all of them.
            assert error["message"] == message(n)[: MAX_MESSAGE_CHARS - 3] + "..."
            assert error["type"].endswith(LargeError.__name__)


def last_errors(engine: sa.Engine) -> dict[int, str]:
    statement = """
    SELECT CAST(CAST(p.payload AS text) AS integer) AS n, CAST(j.last_error AS text) AS error
    FROM sqlane_jobs AS j JOIN sqlane_payloads AS p ON p.id = j.id WHERE j.status = 'failed'"""
    with engine.connect() as conn:
        errors = {row.n: row.error for row in conn.execute(sa.text(statement))}
    assert len(errors) == 4 * len(KINDS)
    return errors


def at_rest(worker: Worker) -> bool:
    """What it had in hand is forgotten, and it waits for a wake-up."""
    assert worker._parts is not None
    return not worker._parts.jobs and worker._parts.loop.idle.is_set()


def processes() -> dict[str, int]:
    files = Path("/proc/self/fd")
    return {"threads": threading.active_count(), "files": len(os.listdir(files)) if files.exists() else 0}


def sizes(worker: Worker) -> dict[str, int]:
    """How many items each collection of the worker has, by the path to it."""
    found: dict[str, int] = {}
    waiting: deque[tuple[str, object]] = deque([("worker", worker)])
    seen: set[int] = set()
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Sized) and not isinstance(one, str | bytes):
            found[path] = len(one)
        if type(one).__module__.startswith("sqlane_sa.worker"):
            waiting += [(f"{path}.{name}", value) for name, value in vars_of(one).items()]
        elif isinstance(one, list | tuple):
            waiting += [(f"{path}[{place}]", value) for place, value in enumerate(one[:SMALL])]
    return found


def vars_of(one: object) -> dict[str, Any]:
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(one, name) for name in slots if hasattr(one, name)} | getattr(one, "__dict__", {})
