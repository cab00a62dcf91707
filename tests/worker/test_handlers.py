"""What a job costs between its claim and its result: counted, without a database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

from sqlane_sa import JobContext, Queue
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Completed, Released
from sqlane_sa.worker import execution, running
from sqlane_sa.worker import handlers as module
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.event_loop import EventLoop
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.handlers import NO_OUTCOME_DELAY, Handlers
from sqlane_sa.worker.running import RunningJob, RunningJobs
from sqlane_sa.worker.timer import LOOK_INTERVAL, Timer
from tests.support import wait_until

CONCURRENCY = 3
MANY = 200


@pytest.fixture
def jobs() -> RunningJobs:
    return RunningJobs()


@pytest.fixture
def timer(jobs: RunningJobs) -> Timer:
    return Timer(jobs, CONCURRENCY)


@pytest.fixture
def given_up() -> list[str]:
    """Why, each time."""
    return []


@pytest.fixture
def handlers(queue: Queue, jobs: RunningJobs, timer: Timer, given_up: list[str]) -> Iterator[Handlers]:
    nowhere: Any = None
    made = Handlers(Execution(queue, nowhere, nowhere, UNLIMITED), jobs, CONCURRENCY, timer.watch, given_up.append)
    yield made
    made.stop()


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def submit(queue: Queue, handlers: Handlers, jobs: RunningJobs) -> Callable[..., list[RunningJob]]:
    """Start a job for each payload text."""

    def start(name: str, texts: list[str]) -> list[RunningJob]:
        now = datetime.now(UTC)
        claimed = [
            ClaimedJob(f"{n}", name, 0, 5, 0, 3, None, None, "token", now, 0.0, 0, now, text)
            for n, text in enumerate(texts)
        ]
        starting = [RunningJob(job, queue.definitions[name], time.monotonic(), 60.0) for job in claimed]
        jobs.add(*starting)
        handlers.submit(starting)
        return starting

    return start


def ended(jobs: RunningJobs, number: int) -> list[object]:
    wait_until(lambda: len(jobs.finished) == number)
    return [outcome for _, outcome in jobs.finished]


VARIABLE: ContextVar[int] = ContextVar("variable", default=0)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handlers_context_variables_are_its_own(queue: Queue, submit: Any, jobs: RunningJobs, kind: str) -> None:
    """Also where the next job takes over its slot, and is started by the one before it."""
    seen: list[int] = []

    def step(payload: int) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(payload)

    async def step_async(payload: int) -> None:
        step(payload)
        await asyncio.sleep(0)

    queue.job("sets")(step if kind == "def" else step_async)
    submit("sets", [str(n + 1) for n in range(MANY)])
    assert ended(jobs, MANY) == [Completed()] * MANY
    assert seen == [0] * MANY


def test_each_slot_has_a_thread_when_handlers_block(queue: Queue, submit: Any, jobs: RunningJobs) -> None:
    """Threads start one another: the last one as surely as the first."""
    all_run = threading.Barrier(CONCURRENCY)
    queue.job("blocks")(lambda payload: all_run.wait(60) and None)
    for _ in range(3):
        submit("blocks", ["1"] * CONCURRENCY)
        assert ended(jobs, CONCURRENCY) == [Completed()] * CONCURRENCY
        jobs.take_finished()


def test_threads_and_tasks_start_each_other(queue: Queue, submit: Any, jobs: RunningJobs, handlers: Handlers) -> None:
    """In whatever order they come."""
    go_on = threading.Event()

    async def waits(payload: object) -> None:
        await asyncio.to_thread(go_on.wait, 30)

    queue.job("async")(waits)
    queue.job("def")(lambda payload: go_on.wait(60) and None)
    for names in (("async", "def", "async"), ("def", "async", "def")):
        go_on.clear()
        for name in names:
            submit(name, ["1"])
        submit(names[1], ["1"])
        wait_until(lambda: sum(job.started_at is not None for job in jobs.snapshot()) == CONCURRENCY)
        assert handlers.active == CONCURRENCY + 1
        go_on.set()
        ended(jobs, CONCURRENCY + 1)
        jobs.remove(jobs.take_finished())


def test_threads_are_asked_for_one_after_the_other(
    queue: Queue, submit: Any, jobs: RunningJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one that came before. What ends sooner than that needs one thread alone, whatever the concurrency."""
    asked: list[str] = []
    spawn = Handlers._spawn

    def only_one(self: Handlers, job: RunningJob, **options: Any) -> bool:
        asked.append(threading.current_thread().name)
        return len(asked) == 1 and spawn(self, job, **options)

    monkeypatch.setattr(Handlers, "_spawn", only_one)
    queue.job("quick")(lambda payload: None)
    submit("quick", ["1"] * MANY)
    ended(jobs, MANY)
    assert asked == [threading.current_thread().name, "sqlane-handler-1"]


@pytest.mark.parametrize("following", ["def", "async def"])
def test_no_more_threads_are_made_than_slots(
    queue: Queue, submit: Any, jobs: RunningJobs, handlers: Handlers, monkeypatch: pytest.MonkeyPatch, following: str
) -> None:
    """A thread that has given back its slot is found by whoever takes that, in whatever step it is; so what an
    application keeps by thread, such as a connection, is kept as often as there are slots."""
    with_finish = following == "def"
    owner, step = (jobs, "finish") if with_finish else (handlers, "_start_tasks")
    go_through, at_the_step = getattr(owner, step), threading.Semaphore(0)
    all_there, go_on = threading.Event(), threading.Event()
    names: set[str] = set()

    def slowly(*args: Any) -> None:
        go_through(*args)
        if threading.current_thread().name.startswith("sqlane-handler"):
            at_the_step.release()
            assert go_on.wait(60)

    async def waits(payload: object) -> None:
        await asyncio.to_thread(all_there.wait, 30)  # one that ends sooner is followed by what a thread was to follow

    monkeypatch.setattr(owner, step, slowly)
    queue.job("quick")(lambda payload: names.add(threading.current_thread().name))
    queue.job("async")(waits)
    gate = threading.Barrier(CONCURRENCY + 1)
    queue.job("gate")(lambda payload: gate.wait(60) and None)
    submit("gate", ["1"] * CONCURRENCY)
    if not with_finish:
        submit("async", ["1"] * CONCURRENCY)
    gate.wait(60)
    for _ in range(CONCURRENCY):
        assert at_the_step.acquire(timeout=60)
    all_there.set()
    submit("quick", ["1"] * CONCURRENCY)
    if not with_finish:
        ended(jobs, 2 * CONCURRENCY)
    go_on.set()
    ended(jobs, CONCURRENCY * (2 if with_finish else 3))
    assert names <= {f"sqlane-handler-{n + 1}" for n in range(CONCURRENCY)}


def test_the_first_job_starts_first(queue: Queue, submit: Any, jobs: RunningJobs) -> None:
    """Also where a thread has to be made for the next one, which takes longer than the job."""
    started: list[int] = []
    queue.job("notes")(started.append)
    submit("notes", [str(n) for n in range(CONCURRENCY)])
    ended(jobs, CONCURRENCY)
    assert started[0] == 0
    assert sorted(started) == list(range(CONCURRENCY))


def test_the_loop_is_called_for_more_when_half_has_ended(
    queue: Queue, submit: Any, jobs: RunningJobs, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all that ends is the writer's, which is busy."""
    active: list[int] = []
    call_loop = jobs.call_loop

    def called() -> None:
        active.append(handlers.active)
        call_loop()

    monkeypatch.setattr(jobs, "call_loop", called)
    monkeypatch.setattr(running, "MANY", 0)
    jobs.writer_ready = jobs.waiting = True
    handlers.refill_at = MANY // 2
    queue.job("quick")(lambda payload: None)
    submit("quick", [str(n) for n in range(MANY)])
    ended(jobs, MANY)
    assert jobs.wake.is_set()
    assert active == [MANY // 2]


def test_progress_counts_no_idle_time(queue: Queue, submit: Any, jobs: RunningJobs, handlers: Handlers) -> None:
    queue.job("quick")(lambda payload: None)
    submit("quick", ["1"] * MANY)
    ended(jobs, MANY)
    wait_until(lambda: handlers.active == 0)
    progress = handlers.progress()
    assert progress[0] == MANY and progress[1] > 0
    assert handlers.progress() == progress


def test_async_jobs_take_over_without_a_call_from_outside(
    queue: Queue, submit: Any, jobs: RunningJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call into the loop from another thread costs a system call or two: one for a batch."""
    calls: list[int] = []
    call = EventLoop.call

    def counted(loop: EventLoop, *args: Any) -> None:
        calls.append(1)
        call(loop, *args)

    monkeypatch.setattr(EventLoop, "call", counted)

    @queue.job("quick")
    async def quick(payload: int) -> None:
        assert asyncio.current_task() is not None

    submit("quick", [str(n) for n in range(MANY)])
    ended(jobs, MANY)
    assert len(calls) == 1


def test_tasks_cancelled_before_their_first_steps_end_among_others(
    queue: Queue, submit: Any, jobs: RunningJobs, handlers: Handlers
) -> None:
    """Those that took over a slot too: each is released, no slot is lost, and the look for them misses none."""

    @queue.job("cancels")
    async def cancels(payload: int) -> None:
        if payload % 7 == 0:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()

    submit("cancels", [str(n) for n in range(MANY)])
    outcomes = ended(jobs, MANY)
    assert outcomes.count(Completed()) + outcomes.count(Released(None)) == MANY
    assert Released(None) in outcomes
    wait_until(lambda: handlers.active == 0)
    wait_until(lambda: not handlers._event_loop.tasks)


def test_an_event_loop_that_cannot_go_on_is_given_up(
    queue: Queue, submit: Any, handlers: Handlers, given_up: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It would try for ever otherwise, while its jobs keep their leases."""

    def fail(timeout: float | None) -> None:
        raise OSError("the selector is closed")

    @queue.job("breaks")
    async def breaks(payload: int) -> None:
        asyncio.get_running_loop()._selector.select = fail  # type: ignore[attr-defined]

    submit("breaks", ["1"])
    wait_until(lambda: given_up)
    assert given_up == ["the event loop of async handlers cannot go on"]
    assert len(caplog.records) == 1, "not a line for each try"
    assert handlers._event_loop._loop is not None
    handlers._event_loop._loop.close()
    handlers._event_loop._loop = None


def test_tasks_left_behind_that_exit_do_not_end_the_event_loop(
    queue: Queue, submit: Any, jobs: RunningJobs, given_up: list[str]
) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    left: list[asyncio.Task[None]] = []

    @queue.job("leaves")
    async def leaves(payload: int) -> None:
        left.extend(asyncio.create_task(leave()) for _ in range(MANY))

    queue.job("quick")(asyncio.sleep)
    submit("leaves", ["1"])
    submit("quick", ["0"])
    ended(jobs, 2)
    wait_until(lambda: all(task.done() for task in left))
    assert [type(task.exception()) for task in left] == [SystemExit] * MANY
    assert given_up == []


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_fails_around_a_handler_gives_back_slot_and_job(
    queue: Queue,
    submit: Any,
    jobs: RunningJobs,
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    error: type[BaseException],
) -> None:
    """A fault of our own, which leaves no outcome: the last of the jobs is handed back too, and others run after it."""

    def broken(self: Execution, job: RunningJob) -> Any:
        raise error()

    async def broken_async(self: Execution, job: RunningJob) -> Any:
        raise error()

    queue.job("any")((lambda payload: None) if kind == "def" else asyncio.sleep)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "run", broken)
        patch.setattr(Execution, "run_async", broken_async)
        submit("any", ["0"] * MANY)
        assert ended(jobs, MANY) == [Released(NO_OUTCOME_DELAY)] * MANY
        wait_until(lambda: handlers.active == 0)
    submit("any", ["0"] * MANY)
    assert ended(jobs, 2 * MANY)[MANY:] == [Completed()] * MANY


def test_a_log_that_fails_does_not_hold_back_what_failed_around_a_handler(
    queue: Queue, submit: Any, jobs: RunningJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise OSError("no space left on the device of the log")

    monkeypatch.setattr(Execution, "run", fail)
    monkeypatch.setattr(module.log, "critical", fail)
    queue.job("any")(lambda payload: None)
    submit("any", ["0"])
    assert ended(jobs, 1) == [Released(NO_OUTCOME_DELAY)]


def test_a_context_is_made_for_handlers_that_take_one(
    queue: Queue, submit: Any, jobs: RunningJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Counted(JobContext):
        def __init__(self, running: RunningJob, *args: Any) -> None:
            made.append(running.claimed.name)
            super().__init__(running, *args)

    monkeypatch.setattr(execution, "JobContext", Counted)
    queue.job("without")(lambda payload: None)
    queue.job("with")(lambda payload, ctx: None)
    submit("without", ["1"] * 5)
    submit("with", ["1"] * 5)
    ended(jobs, 10)
    assert made == ["with"] * 5


def test_a_large_payloads_text_is_not_kept_beside_its_value(queue: Queue, submit: Any, jobs: RunningJobs) -> None:
    texts: list[str | None] = []

    def handler(payload: list[int], ctx: JobContext) -> None:
        texts.append(ctx._running.claimed.payload_text)
        assert len(payload) in (3, 3000)

    queue.job("any")(handler)
    submit("any", ["[1,2,3]", str([1] * 3000)])
    ended(jobs, 2)
    assert sorted(text is None for text in texts) == [False, True]


def test_jobs_handed_back_are_not_started(queue: Queue, submit: Any, jobs: RunningJobs, handlers: Handlers) -> None:
    """While handlers take the next ones over, which needs no lock: each job goes one way."""
    started: list[int] = []
    queue.job("quick")(started.append)
    back: list[RunningJob] = []
    submit("quick", [str(n) for n in range(20 * MANY)])
    while handlers.active:
        back += handlers.take_waiting()
    wait_until(lambda: len(jobs.finished) + len(back) == 20 * MANY)
    assert sorted([*started, *(int(job.claimed.payload_text or "") for job in back)]) == list(range(20 * MANY))


def test_the_timer_is_woken_for_an_earlier_deadline_only(queue: Queue, submit: Any, jobs: RunningJobs) -> None:
    """A set event costs a look at all jobs."""
    go = threading.Event()

    def wait(payload: int) -> None:
        assert go.wait(60)

    queue.job("long", timeout=3600)(wait)
    queue.job("short", timeout=LOOK_INTERVAL / 2)(wait)
    (long,) = submit("long", ["1"])
    timer = Timer(jobs, CONCURRENCY)
    wait_until(lambda: long.deadline is not None)
    timer.wake.set = lambda: None  # type: ignore[method-assign]
    timer.wake.wait = lambda timeout: timeout is not None  # type: ignore[method-assign]
    timer.run_once()
    woken: list[RunningJob] = []
    timer.wake.set = lambda: woken.append(long)  # type: ignore[method-assign]
    timer.watch(long)
    assert woken == []
    (short,) = submit("short", ["1"])
    wait_until(lambda: short.deadline is not None)
    timer.watch(short)
    assert len(woken) == 1
    go.set()
    ended(jobs, 2)


def test_a_job_that_starts_during_the_timers_look_is_not_missed(
    queue: Queue, submit: Any, jobs: RunningJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    @queue.job("short", timeout=60)
    def wait(payload: int) -> None:
        assert go.wait(60)

    timer = Timer(jobs, CONCURRENCY)
    monkeypatch.setattr(timer.wake, "wait", lambda timeout: None)
    timer.run_once()  # nothing runs: the next look is in a while
    look = timer._look_at_slots

    def start_meanwhile(running: list[RunningJob]) -> None:
        (job,) = submit("short", ["1"])
        wait_until(lambda: job.deadline is not None)
        timer.watch(job)
        look(running)

    monkeypatch.setattr(timer, "_look_at_slots", start_meanwhile)
    timer.run_once()
    assert timer.wake.is_set()
    go.set()
    ended(jobs, 1)
