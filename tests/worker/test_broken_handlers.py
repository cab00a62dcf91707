"""Handlers that break what is around them: their job ends, their slot is given back, and the neighbours run."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from sqlane_sa import Backoff, Job, JobContext, Queue, Retry, Snooze, Worker
from sqlane_sa.worker import handlers
from sqlane_sa.worker.running import RunningJob
from sqlane_sa.worker.timer import Timer
from tests.support import wait_until

Run = Callable[..., None]
Enqueue = Callable[..., str]
Read = Callable[[str], Job]

SOON = Backoff(base=0.0)


class SnoozeOfOwn(Snooze):
    """Without a delay: its __init__ does not call the one above."""

    def __init__(self) -> None:
        pass


class RetryOfOwn(Retry):
    def __init__(self) -> None:
        pass


class ExitInTextError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NoClassError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ValueError("not even isinstance works")


def changed(signal: Any, delay: object) -> Any:
    signal.delay = delay
    return signal


BROKEN = {
    "a snooze without its delay": lambda: SnoozeOfOwn(),
    "a retry without its delay": lambda: RetryOfOwn(),
    "a text that exits": lambda: ExitInTextError(),
    "a class that raises": lambda: NoClassError(),
    "a delay that is a text": lambda: changed(Snooze(1), "soon"),
    "a delay that is not finite": lambda: changed(Retry(1), float("nan")),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_exception_that_is_no_use(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, kind: str, asynchronous: bool
) -> None:
    """Each is a failed attempt."""

    def broken(payload: object) -> None:
        raise BROKEN[kind]()

    async def broken_async(payload: object) -> None:
        raise BROKEN[kind]()

    queue.job("broken", max_attempts=1)(broken_async if asynchronous else broken)
    queue.job("good")(lambda payload: None)
    bad, good = enqueue("broken"), enqueue("good")
    run(concurrency=1)
    assert (job(bad).status, job(bad).attempts, job(bad).stalls) == ("failed", 1, 0)
    assert job(bad).last_error is not None
    assert job(good).status == "completed"


def test_a_delay_may_be_changed_to_a_timedelta(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    @queue.job("later")
    def later(payload: object) -> None:
        raise changed(Snooze(1), timedelta(hours=1))

    id_ = enqueue("later")
    run()
    put_back = job(id_)
    assert (put_back.status, put_back.attempts) == ("pending", 0)
    assert put_back.run_at - put_back.updated_at > timedelta(minutes=59)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_backoff_that_exits(queue: Queue, run: Run, enqueue: Enqueue, job: Read, error: type[BaseException]) -> None:
    def backoff(attempt: int) -> float:
        raise error

    @queue.job("bad", max_attempts=2, backoff=backoff)
    def bad(payload: object) -> None:
        raise ValueError

    id_ = enqueue("bad")
    run()
    assert (job(id_).status, job(id_).attempts) == ("pending", 1)


def test_a_task_cancelled_before_its_first_step(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    """By a handler that cancels everything in the loop, itself included: the others run after all."""
    cancels = iter([True])

    @queue.job("cancels", max_attempts=1)
    async def cancels_all(payload: object) -> None:
        if next(cancels, False):
            for task in asyncio.all_tasks():
                task.cancel()
        await asyncio.sleep(0)

    ids = [enqueue("cancels") for _ in range(5)]
    run(concurrency=5)
    states = sorted(job(id_).status for id_ in ids)
    assert states == ["completed"] * 4 + ["failed"]
    assert [job(id_).stalls for id_ in ids] == [0] * 5


def test_no_thread_can_be_started(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's limit: the jobs wait and run once there are threads again; no slot is lost."""
    start, refused = threading.Thread.start, iter(range(3))

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name.startswith("sqlane-handler") and next(refused, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(handlers.threading.Thread, "start", start_or_not)
    queue.job("good")(lambda payload: None)
    ids = [enqueue("good") for _ in range(4)]
    run(concurrency=2)
    assert {(job(id_).status, job(id_).attempts, job(id_).stalls) for id_ in ids} == {("completed", 1, 0)}


def test_no_thread_can_be_started_for_the_event_loop(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the jobs of the loop nor those that were claimed with them are left running for ever."""
    start, refused = threading.Thread.start, iter(range(2))

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "sqlane-async" and next(refused, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def good(payload: object) -> None: ...

    monkeypatch.setattr(handlers.threading.Thread, "start", start_or_not)
    queue.job("async")(good)
    queue.job("def")(lambda payload: None)
    ids = [enqueue(name) for name in ("async", "def", "async", "def")]
    run(concurrency=4)
    assert {(job(id_).status, job(id_).attempts, job(id_).stalls) for id_ in ids} == {("completed", 1, 0)}


class RaisingLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the log's server is down")


@pytest.fixture
def raising_log() -> Iterator[None]:
    handler = RaisingLog(logging.WARNING)
    logging.getLogger("sqlane_sa.worker").addHandler(handler)
    yield
    logging.getLogger("sqlane_sa.worker").removeHandler(handler)


def test_a_log_that_raises_costs_no_slot(
    queue: Queue, work: Any, enqueue: Enqueue, job: Read, raising_log: None
) -> None:
    """What fails for good says so, which raises; its job is released, and not left running for ever."""

    @queue.job("bad", max_attempts=1)
    def bad(payload: object) -> None:
        raise ValueError("bad")

    queue.job("good")(lambda payload: None)
    bad_id = enqueue("bad")
    work(concurrency=1)
    wait_until(lambda: job(bad_id).status == "pending")
    good_id = enqueue("good")
    wait_until(lambda: job(good_id).status == "completed")


def test_a_failure_job_whose_keys_exit(queue: Queue, run: Run, enqueue: Enqueue, job: Read, caplog: Any) -> None:
    def keys(payload: object) -> list[str]:
        raise SystemExit

    queue.job("reacts", mutex_keys=keys)(lambda payload: None)

    @queue.job("bad", max_attempts=1, failure_job="reacts")
    def bad(payload: object) -> None:
        raise ValueError

    queue.job("good")(lambda payload: None)
    ids = [enqueue("bad"), enqueue("good")]
    run()
    assert [job(id_).status for id_ in ids] == ["failed", "completed"]
    assert "its failure job was not added" in caplog.text


def test_a_payload_too_deep_to_be_passed_on(queue: Queue, run: Run, enqueue: Enqueue, job: Read) -> None:
    """As deep as enqueue takes it: the failure job is there, without that payload, which the failed job keeps."""
    payload: list[Any] = []
    for _ in range(199):
        payload = [payload]
    got: list[Any] = []
    queue.job("reacts")(got.append)

    @queue.job("bad", max_attempts=1, failure_job="reacts")
    def bad(payload: object) -> None:
        raise ValueError("too much")

    id_ = enqueue("bad", payload)
    run()
    assert (job(id_).status, job(id_).payload) == ("failed", payload)
    assert [(one["id"], one["payload"], one["error"]["message"]) for one in got] == [(id_, None, "too much")]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_deadline_that_nobody_saw_pass(
    queue: Queue, run: Run, enqueue: Enqueue, job: Read, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """As after a pause of the whole process: the handler has returned before the timer looks."""
    monkeypatch.setattr(Timer, "_cancel_overdue", lambda timer, running, now: math.inf)
    running: list[JobContext] = []

    @queue.job("slow", max_attempts=1, timeout=0.05, transactional=transactional)
    def slow(payload: object, ctx: JobContext) -> None:
        running.append(ctx)
        wait_until(lambda: handlers.time.monotonic() > ctx._running.deadline)  # type: ignore[operator]

    id_ = enqueue("slow")
    run()
    assert job(id_).status == "failed"
    assert (job(id_).last_error or {})["type"].endswith("JobTimeoutError")


def test_ended_jobs_are_not_kept_until_their_deadlines(queue: Queue, work: Any, enqueue: Enqueue, job: Read) -> None:
    go = threading.Event()

    @queue.job("long", timeout=3600)
    def long(payload: object) -> None:
        assert go.wait(60)

    queue.job("short", timeout=7200)(lambda payload: None)
    worker: Worker = work(concurrency=2)
    first = enqueue("long")
    wait_until(lambda: job(first).status == "running")
    ids = [enqueue("short") for _ in range(300)]
    wait_until(lambda: job(ids[-1]).status == "completed")
    wait_until(lambda: worker._parts is not None and len(worker._parts.jobs) == 1)
    assert sum(type(one) is RunningJob for one in gc.get_objects()) < 150
    go.set()
