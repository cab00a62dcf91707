"""Options, starting and stopping."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sqlane_sa import (
    DefinitionError,
    HandleError,
    Job,
    JobContext,
    Queue,
    SchemaBehindError,
    UnknownNameError,
    Worker,
    WorkerError,
)
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker.running import RunningJob
from sqlane_sa.worker.signals import stop_signals
from tests.support import wait_for_lock_wait, wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0),
        ("concurrency", True),
        ("concurrency", 1.5),
        ("lease", 0),
        ("lease", 0.01),
        ("lease", float("nan")),
        ("poll_interval", 0),
        ("poll_interval", "1"),
        ("shutdown_timeout", -1),
        ("stall_delay", -1),
        ("sweep_interval", 0),
        ("names", "quick"),
        ("names", ["enqueue.only"]),
        ("names", []),
        ("worker_id", ""),
        ("worker_id", "a\0b"),
        ("worker_id", "a\udc80b"),
    ],
)
def test_options_are_refused_by_name(queue: Queue, engine: sa.Engine, option: str, value: Any) -> None:
    queue.job("quick")(lambda payload: None)
    queue.define("enqueue.only")
    with pytest.raises(DefinitionError, match=option) as caught:
        Worker(engine, queue, **{option: value})
    assert caught.value.option == option


def test_other_refusals(queue: Queue, engine: sa.Engine, database_url: str) -> None:
    with pytest.raises(DefinitionError, match="no handlers"):
        Worker(engine, queue)
    queue.job("quick")(lambda payload: None)
    with pytest.raises(UnknownNameError, match="quikc"):
        Worker(engine, queue, names=["quikc"])
    with pytest.raises(HandleError, match="synchronous"):
        Worker(create_async_engine(database_url), queue)  # type: ignore[arg-type]
    with pytest.raises(HandleError, match=r"takes an Engine of PostgreSQL .* got Engine of sqlite; use"):
        Worker(sa.create_engine("sqlite://"), queue)
    Worker(engine, queue, lease=timedelta(minutes=1), poll_interval=timedelta(seconds=1))


def test_a_worker_does_not_start_on_missing_tables(engine: sa.Engine) -> None:
    other = Queue(prefix="other_")
    other.job("quick")(lambda payload: None)
    with pytest.raises(SchemaBehindError, match="sqlane migrate"):
        Worker(engine, other).start()
    assert not sa.inspect(engine).has_table("other_jobs")


def test_run_in_a_thread_and_stop(queue: Queue, engine: sa.Engine, enqueue: Any, job: Read) -> None:
    queue.job("quick")(lambda payload: None)
    worker = Worker(engine, queue, poll_interval=0.05)
    thread = threading.Thread(target=worker.run)
    thread.start()
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_signal_handlers_are_put_back(queue: Queue, engine: sa.Engine, enqueue: Any, job: Read) -> None:
    seen: list[Any] = []

    @queue.job("quick")
    def quick(payload: Any) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    id_ = enqueue("quick")
    Worker(engine, queue).run()
    assert job(id_).status == "completed"
    assert seen[0] not in before
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_worker_runs_once_at_a_time_and_again_later(queue: Queue, engine: sa.Engine, enqueue: Any, job: Read) -> None:
    queue.job("quick")(lambda payload: None)
    worker = Worker(engine, queue)
    with worker:
        with pytest.raises(WorkerError, match="already"):
            worker.start()
    worker.stop()
    id_ = enqueue("quick")
    worker.run_until_idle()
    assert job(id_).status == "completed"


@pytest.mark.filterwarnings("ignore:.*was never awaited")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_a_forked_child_ends_by_a_signal() -> None:
    """Such as one of `multiprocessing` that a handler has started, and terminates."""
    told: list[str] = []
    with stop_signals(lambda: told.append("stop"), lambda: told.append("hurry")):
        ready, to_parent = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(to_parent, b"1")  # before it, Python forgets signals as those of its parent
            time.sleep(30)
            os._exit(0)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        os.close(ready)
        os.close(to_parent)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
    assert told == []


def test_no_thread_is_left_after_a_stop(queue: Queue, engine: sa.Engine, enqueue: Any) -> None:
    @queue.job("async")
    async def coroutine(payload: Any) -> None: ...

    queue.job("quick")(lambda payload: None)
    before = set(threading.enumerate())
    for _ in range(50):
        enqueue("async")
        enqueue("quick")
    Worker(engine, queue).run_until_idle()
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_the_context_tells_the_facts(queue: Queue, run: Any, enqueue: Any, job: Read) -> None:
    facts: list[dict[str, Any]] = []

    @queue.job("facts", max_attempts=7)
    def tell(payload: Any, ctx: JobContext) -> None:
        facts.append(
            {
                name: getattr(ctx, name)
                for name in ("id", "name", "attempt", "max_attempts", "enqueued_at", "waited", "lock_token")
            }
        )
        facts[0]["enqueued"] = ctx.enqueue("next", {"from": ctx.id})
        assert not ctx.cancelled.is_set() and ctx.cancel_reason is None

    queue.define("next")
    id_ = enqueue("facts")
    created = job(id_).created_at
    run()
    (told,) = facts
    assert (told["id"], told["name"], told["attempt"], told["max_attempts"]) == (id_, "facts", 1, 7)
    assert told["enqueued_at"] == created
    assert told["waited"] >= timedelta(0)
    assert len(told["lock_token"]) == 26
    assert job(told["enqueued"].id).payload == {"from": id_}


@pytest.mark.parametrize("method", ["run", "start"])
def test_a_stop_during_a_start(queue: Queue, engine: sa.Engine, method: str) -> None:
    """It comes while the look at the schema waits for a lock, and takes effect after that."""
    queue.job("quick")(lambda payload: None)
    worker = Worker(engine, queue)
    with engine.connect() as rival:
        rival.exec_driver_sql("LOCK TABLE sqlane_version IN ACCESS EXCLUSIVE MODE")
        starter = in_thread(getattr(worker, method))
        wait_for_lock_wait(engine)
        stopper = in_thread(worker.stop)
        wait_until(lambda: worker._life.asked)
        rival.rollback()
    join(starter, stopper)
    assert worker._parts is None


def test_a_stop_during_a_start_that_fails(engine: sa.Engine) -> None:
    other = Queue(prefix="other_")
    other.job("quick")(lambda payload: None)
    worker = Worker(engine, other)
    failed = False

    def start() -> None:
        nonlocal failed
        with pytest.raises(SchemaBehindError):
            worker.start()
        failed = True

    with engine.connect() as rival:
        rival.exec_driver_sql("LOCK TABLE pg_class IN ACCESS EXCLUSIVE MODE")
        starter = in_thread(start)
        wait_until(lambda: worker._life.taken)
        stopper = in_thread(worker.stop)
        wait_until(lambda: worker._life.asked)
        rival.rollback()
    join(starter, stopper)
    assert failed


@pytest.mark.parametrize("option", ["wakeups", "exit_when_stuck"])
@pytest.mark.parametrize("value", ["no", None, 1])
def test_a_switch_is_on_or_off(queue: Queue, engine: sa.Engine, option: str, value: Any) -> None:
    queue.job("quick")(lambda payload: None)
    with pytest.raises(DefinitionError, match=option):
        Worker(engine, queue, **{option: value})


def test_a_worker_runs_again_after_its_stop(queue: Queue, engine: sa.Engine, enqueue: Any, job: Read) -> None:
    queue.job("quick")(lambda payload: None)
    worker = Worker(engine, queue)
    for _ in range(2):
        id_ = enqueue("quick")
        worker.run_until_idle()
        worker.stop()
        assert job(id_).status == "completed"


def test_a_worker_that_gave_up_starts_nothing_more(queue: Queue, engine: sa.Engine, enqueue: Any, sql: Any) -> None:
    """Also before its owner looks: other workers are there for the jobs."""
    queue.job("quick")(lambda payload: None)
    worker = Worker(engine, queue, **SHORT).start()  # type: ignore[arg-type]
    worker.give_up("a part of it ended")
    wait_until(worker._parts.loop.settled.is_set)  # type: ignore[union-attr]
    enqueue("quick")
    with pytest.raises(WorkerError, match="a part of it ended"):
        worker.stop()
    assert sql("SELECT status FROM sqlane_jobs") == [("pending",)]


def hold(queue: Queue) -> threading.Event:
    """Define a job "held" that runs until a shutdown has lost its patience; set once it runs."""
    runs = threading.Event()

    @queue.job("held")
    def held(payload: Any, ctx: JobContext) -> None:
        runs.set()
        ctx.cancelled.wait()

    return runs


def test_run_returns_once_a_stop_elsewhere_has_shut_down(
    queue: Queue, engine: sa.Engine, enqueue: Any, job: Read
) -> None:
    """The program may end then."""
    runs = hold(queue)
    worker = Worker(engine, queue, **SHORT | {"shutdown_timeout": 0.5})  # type: ignore[arg-type]
    id_ = enqueue("held")
    seen: list[str] = []
    runner = in_thread(lambda: (worker.run(), seen.append(job(id_).status)))
    runs.wait()
    stopper = in_thread(lambda: (worker.stop(), seen.append(job(id_).status)))
    join(runner, stopper)
    assert seen == ["completed"] * 2


def test_each_of_many_stops_waits_for_the_end(queue: Queue, work: Any, enqueue: Any, job: Read) -> None:
    runs = hold(queue)
    worker = work(shutdown_timeout=0.5)
    id_ = enqueue("held")
    runs.wait()
    seen: list[str] = []
    join(*[in_thread(lambda: (worker.stop(), seen.append(job(id_).status))) for _ in range(5)])
    assert seen == ["completed"] * 5


def test_a_part_that_dies_during_a_shutdown_is_told_to_all(queue: Queue, engine: sa.Engine, enqueue: Any) -> None:
    runs, release = threading.Event(), threading.Event()

    @queue.job("held")
    def held(payload: Any) -> None:
        runs.set()
        release.wait()

    told: list[str] = []

    def tell(function: Callable[[], None]) -> None:
        with pytest.raises(WorkerError, match="a part of it ended"):
            function()
        told.append(function.__name__)

    worker = Worker(engine, queue, **SHORT | {"shutdown_timeout": 60})  # type: ignore[arg-type]
    enqueue("held")
    runner = in_thread(lambda: tell(worker.run))
    runs.wait()
    stopper = in_thread(lambda: tell(worker.stop))
    wait_until(worker._parts.loop.settled.is_set)  # type: ignore[union-attr]
    worker.give_up("a part of it ended")
    release.set()
    join(runner, stopper)
    assert sorted(told) == ["run", "stop"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_may_stop_its_worker(queue: Queue, engine: sa.Engine, enqueue: Any, job: Read, kind: str) -> None:
    """It asks, and does not wait for its own end."""
    asked = threading.Event()

    @queue.job("def")
    def stop(payload: Any) -> None:
        worker.stop()
        asked.set()

    @queue.job("async def")
    async def stop_async(payload: Any) -> None:
        stop(payload)

    worker = Worker(engine, queue, **SHORT | {"shutdown_timeout": 60})  # type: ignore[arg-type]
    ids = [enqueue(kind)]
    worker.run()
    asked.clear()
    with worker:
        ids.append(enqueue(kind))
        wait_until(asked.is_set)
    asked.clear()
    worker.start()
    ids.append(enqueue(kind))
    wait_until(lambda: worker._parts is None)
    assert [(job(id_).status, job(id_).attempts) for id_ in ids] == [("completed", 1)] * 3


@pytest.mark.skipif(os.name != "posix", reason="sends itself SIGUSR1")
def test_a_signal_handler_of_the_application_may_stop_a_worker(
    queue: Queue, engine: sa.Engine, enqueue: Any, job: Read
) -> None:
    """In the midst of `run`, and again in the midst of the shutdown: it does not wait for itself."""
    handled: list[int] = []

    @queue.job("signals")
    def signals(payload: Any) -> None:
        for n in 1, 2:
            signal.raise_signal(signal.SIGUSR1)
            wait_until(lambda n=n: len(handled) == n)  # type: ignore[misc]
            wait_until(lambda: worker._parts.loop.settled.is_set())  # type: ignore[union-attr]

    worker = Worker(engine, queue, **SHORT | {"shutdown_timeout": 60})  # type: ignore[arg-type]
    before = signal.signal(signal.SIGUSR1, lambda number, frame: (worker.stop(), handled.append(number)))
    try:
        id_ = enqueue("signals")
        worker.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(handled) == 2
    assert job(id_).status == "completed"


def test_a_result_that_waits_at_the_end_of_a_shutdown_is_not_taken_back(
    queue: Queue, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler has returned, and its result is not written yet: released as well, the job might run again."""
    queue.job("n")(lambda payload: None)
    definition = queue.definitions["n"]
    parts = work()._parts
    claimed = ClaimedJob("id", "n", 0, 5, 0, 3, None, None, "t", datetime.now(UTC), 0.0, 0, datetime.now(UTC), "null")
    ended, running = (RunningJob(claimed, definition, time.monotonic(), 60.0) for _ in range(2))
    ended.ended = True
    released: list[RunningJob] = []
    with monkeypatch.context() as patch:
        patch.setattr(parts.jobs, "snapshot", lambda: [ended, running])
        patch.setattr(parts.jobs, "finish", lambda job, outcome: released.append(job))
        parts._release_running()
    assert released == [running]
