"""The writer: completes jobs beside the loop's claims, while many results gather."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, OperationalError

from sqlane_sa import JobContext, Queue, Snooze, store
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Completed, Released
from sqlane_sa.worker import results as results_module
from sqlane_sa.worker import running
from sqlane_sa.worker import writer as module
from sqlane_sa.worker.capacity import MAX_AHEAD
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.loop import Loop
from sqlane_sa.worker.results import Results
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs
from sqlane_sa.worker.writer import Writer
from tests.support import wait_until

CONNECTIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'a worker'"
STATUSES = "SELECT job_name, status, attempts, count(*) FROM sqlane_jobs GROUP BY 1, 2, 3"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five results are many."""
    monkeypatch.setattr(running, "MANY", 5)


def fill(engine: sa.Engine, queue: Queue, name: str, n: int, **options: Any) -> None:
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new(name, i, **options) for i in range(n)))


@pytest.mark.usefixtures("few")
def test_it_completes_beside_the_claims(queue: Queue, engine: sa.Engine, work: Any, sql: Any) -> None:
    runs: Counter[int] = Counter()

    @queue.job("plain")
    def plain(payload: int) -> None:
        runs[payload] += 1

    fill(engine, queue, "plain", 3000)
    worker = work()
    wait_until(lambda: sql(STATUSES) == [("plain", "completed", 1, 3000)])
    wait_until(worker._parts.loop.idle.is_set)
    assert worker._parts.jobs.written > 0
    assert set(runs.values()) == {1}
    assert len(runs) == 3000
    assert not worker._parts.jobs


@pytest.mark.usefixtures("few")
def test_it_keeps_no_connection_while_there_is_nothing_to_write(
    queue: Queue, engine: sa.Engine, database_url: str, work: Any, sql: Any, monkeypatch: Any
) -> None:
    """A server has few: idle writers of many workers would keep others from writing their results. And it opens one
    again."""
    monkeypatch.setattr(module, "KEEP", 0.01)
    queue.job("plain")(lambda payload: None)
    on = sa.create_engine(database_url, connect_args={"application_name": "a worker"})
    jobs = work(engine=on)._parts.jobs
    for _ in range(2):
        before = jobs.written
        while jobs.written == before:  # the loop may have been faster
            fill(engine, queue, "plain", 1000)
            wait_until(lambda: {row.status for row in sql(STATUSES)} == {"completed"})
        wait_until(lambda: len(sql(CONNECTIONS)) == len(["loop", "listener", "sweeper"]))
    on.dispose()


@pytest.mark.usefixtures("few")
def test_it_leaves_other_results_to_the_loop(queue: Queue, engine: sa.Engine, run: Any, sql: Any) -> None:
    @queue.job("plain")
    def plain(payload: int, ctx: JobContext) -> None:
        if payload % 3 == 0 and not ctx.waited.total_seconds() > 3600:
            raise RuntimeError("again")

    @queue.job("keyed", mutex_keys=lambda payload: [f"k{payload % 7}"])
    def keyed(payload: int) -> None:
        """Frees its key."""

    @queue.job("snoozes")
    def snoozes(payload: int) -> None:
        raise Snooze(3600)

    for name in ("plain", "keyed", "snoozes"):
        fill(engine, queue, name, 300, max_attempts=1 if name == "plain" else None)
    run()
    assert sorted(sql(STATUSES)) == [
        ("keyed", "completed", 1, 300),
        ("plain", "completed", 1, 200),
        ("plain", "failed", 1, 100),
        ("snoozes", "pending", 0, 300),
    ]
    assert sql("SELECT count(*) FROM sqlane_mutexes") == [(0,)]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", [OperationalError, DataError])
def test_the_loop_takes_over_what_it_cannot_write(
    queue: Queue, engine: sa.Engine, run: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """An outage, and an error of the rows."""
    failures: list[Exception] = []
    complete = store.complete_free

    def fails(*arguments: Any, **options: Any) -> list[str]:
        if len(options["jobs"]) < 5:
            return complete(*arguments, **options)
        failures.append(kind("UPDATE", {}, Exception("no")))
        raise failures[-1]

    monkeypatch.setattr(store, "complete_free", fails)

    @queue.job("plain")
    def plain(payload: int) -> None:
        """Done at once."""

    fill(engine, queue, "plain", 500)
    run()
    assert failures
    assert sql(STATUSES) == [("plain", "completed", 1, 500)]


@pytest.mark.usefixtures("few")
def test_claims_go_on_while_it_writes(
    queue: Queue, engine: sa.Engine, work: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers that have room get jobs, and the worker does not fall asleep between: until 2,000 results wait."""
    stands, go_on = threading.Event(), threading.Event()
    complete, fall_asleep = store.complete_free, store.fall_asleep
    asleep: list[int] = []

    def stand_still(*arguments: Any, **options: Any) -> list[str]:
        stands.set()
        assert go_on.wait(60)
        return complete(*arguments, **options)

    def counted(*arguments: Any, **options: Any) -> None:
        asleep.append(len(done))
        fall_asleep(*arguments, **options)

    monkeypatch.setattr(store, "complete_free", stand_still)
    monkeypatch.setattr(store, "fall_asleep", counted)
    done: list[int] = []
    queue.job("plain")(done.append)
    fill(engine, queue, "plain", 6000)
    work()
    assert stands.wait(60)
    wait_until(lambda: len(done) >= 2000)
    go_on.set()
    wait_until(lambda: sql(STATUSES) == [("plain", "completed", 1, 6000)])
    # Once there is nothing more to claim, it may.
    assert [n for n in asleep if 0 < n < 6000 - MAX_AHEAD - 10] == []


@pytest.fixture
def writer(queue: Queue, engine: sa.Engine) -> Iterator[Writer]:
    connector = Connector(engine, UNLIMITED)
    database = connector.database()
    yield Writer(database, queue, RunningJobs())
    database.close()
    connector.close()


def held(writer: Writer, queue: Queue, engine: sa.Engine, n: int) -> list[RunningJob]:
    """Jobs that this process has claimed."""
    definition = queue.define("plain").definition
    fill(engine, queue, "plain", n)
    with engine.begin() as conn:
        claimed: list[ClaimedJob] = store.claim_plain(
            conn, queue.tables, lanes=[("plain", 0, n)], lock_token="t", locked_by="w", lease=60
        )
    jobs = [RunningJob(job, definition, 0.0, 60.0) for job in claimed]
    writer._jobs.add(*jobs)
    return jobs


def test_what_is_locked_or_lost_is_passed_over(queue: Queue, engine: sa.Engine, writer: Writer, sql: Any) -> None:
    jobs = held(writer, queue, engine, 5)
    done, locked, taken, lost, released = jobs
    with engine.begin() as conn:
        store.release(conn, queue.tables, job=taken)
    lost.cancelled = LEASE_LOST
    for job in jobs[:4]:
        writer._jobs.finish(job, Completed())
    writer._jobs.finish(released, Released(None))
    with engine.begin() as rival:
        rival.execute(sa.text("SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE"), {"id": locked.id}).close()
        writer.write()
    assert {job.id for job, _ in writer._jobs.passed_over} == {locked.id, taken.id}
    assert [job for job, _ in writer._jobs.left] == [released]
    assert set(writer._jobs.snapshot()) == {locked, taken, released}
    assert writer._jobs.wake.is_set()
    assert sql("SELECT id FROM sqlane_jobs WHERE status = 'completed'") == [(done.id,)]


@pytest.mark.usefixtures("few")
def test_it_completes_jobs_with_keys_and_their_lines_go_on(
    queue: Queue, engine: sa.Engine, work: Any, sql: Any
) -> None:
    order: dict[int, list[int]] = {}

    @queue.job("keyed", mutex_keys=lambda payload: [f"k{payload % 50}"])
    def keyed(payload: int) -> None:
        order.setdefault(payload % 50, []).append(payload)

    fill(engine, queue, "keyed", 1000)
    worker = work()
    wait_until(lambda: sql(STATUSES) == [("keyed", "completed", 1, 1000)])
    assert worker._parts.jobs.written > 0
    assert sql("SELECT count(*) FROM sqlane_mutexes") == [(0,)]
    assert order == {key: list(range(key, 1000, 50)) for key in range(50)}


def test_what_it_freed_is_for_the_loop_to_follow(queue: Queue, engine: sa.Engine, writer: Writer, sql: Any) -> None:
    definition = queue.define("keyed").definition
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("keyed", None, mutex_keys=[key]) for key in "abc"])
        by: Any = {"names": ["keyed"], "limit": 9, "lock_token": "t", "locked_by": "w", "lease": 60}
        jobs = [RunningJob(job, definition, 0.0, 60.0) for job in store.claim_keyed(conn, queue.tables, **by).jobs]
    writer._jobs.add(*jobs)
    done, locked, retried = jobs
    for job in (done, locked):
        writer._jobs.finish(job, Completed())
    writer._jobs.finish(retried, Released(None))
    with engine.begin() as rival:
        rival.execute(sa.text("SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE"), {"id": locked.id}).close()
        writer.write()
    assert writer._jobs.take_freed() == list(done.mutex_keys)
    assert [job for job, _ in writer._jobs.passed_over] == [locked]
    assert [job for job, _ in writer._jobs.left] == [retried]
    assert sorted(sql("SELECT mutex_key FROM sqlane_mutexes")) == [("b",), ("c",)]


class _Taken(deque[Any]):
    """Of which another thread takes one between the look at its length and the taking."""

    def __len__(self) -> int:
        return super().__len__() + 1


@pytest.mark.usefixtures("few")
def test_while_it_is_away_the_loop_writes_everything(
    queue: Queue, engine: sa.Engine, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts again after a pause, and nothing that has gathered waits for it."""

    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("", {}, ConnectionError("gone"), connection_invalidated=True)

    jobs = writer._jobs
    all_held = held(writer, queue, engine, 20)
    for job in all_held[:10]:
        jobs.finish(job, Completed())
    monkeypatch.setattr(store, "complete_free", fail)
    with pytest.raises(OperationalError):
        writer.run_once()
    for job in all_held[10:]:
        jobs.finish(job, Completed())
    assert len(jobs.take_for_loop()) == 20


def test_two_that_take_results_at_once_lose_none() -> None:
    """The loop and the writer: what one of them has in its hands must not go with the error of an empty deque."""
    jobs = RunningJobs()
    jobs.finished = _Taken(["a", "b"])  # type: ignore[list-item]
    jobs.left = _Taken(["c"])  # type: ignore[list-item]
    assert jobs.take_finished() == ["a", "b"]
    assert jobs.take_for_loop() == ["c"]


def test_a_job_enqueued_while_the_loop_looked_is_not_left_behind(
    queue: Queue, engine: sa.Engine, run: Any, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent ends, and is written by the writer, after the probe of a turn and before the turn ends: the worker is
    not idle then."""
    monkeypatch.setattr(running, "MANY", 1)
    started, go = threading.Event(), threading.Event()

    @queue.job("child")
    def child(payload: None) -> None:
        """Done at once."""

    @queue.job("parent")
    def parent(payload: None, ctx: JobContext) -> None:
        started.set()
        assert go.wait(60)
        ctx.enqueue("child")

    probe = Loop._probe

    def probe_and_wait(loop: Loop, conn: sa.Connection) -> None:
        probe(loop, conn)
        if started.is_set() and not go.is_set():
            go.set()
            wait_until(lambda: not len(loop._jobs))

    monkeypatch.setattr(Loop, "_probe", probe_and_wait)
    with engine.begin() as conn:
        queue.enqueue(conn, "parent")
    run(poll_interval=0.3)
    assert go.is_set()
    assert sorted(sql(STATUSES)) == [("child", "completed", 1, 1), ("parent", "completed", 1, 1)]


@pytest.mark.parametrize("many", [1, 1000])
def test_a_row_that_was_locked_for_a_moment_goes_with_the_next_batch(
    queue: Queue, engine: sa.Engine, work: Any, sql: Any, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """By the claim of another worker: nothing is written apart, in a transaction of its own, with or without writer."""
    monkeypatch.setattr(running, "MANY", many)
    apart: list[Any] = []
    write_apart = results_module.write_apart

    def noted(database: Any, queue: Queue, results: Any) -> Any:
        apart.append([job.id for job, _ in results])
        return write_apart(database, queue, results)

    monkeypatch.setattr(results_module, "write_apart", noted)
    locked, passed_over = threading.Event(), threading.Event()

    @queue.job("plain")
    def plain(payload: None) -> None:
        assert locked.wait(60)

    first_tries = Results._first_tries

    def note(self: Results, results: Any, now: float) -> Any:
        if results:
            passed_over.set()
            assert let_go.wait(60)
        return first_tries(self, results, now)

    let_go = threading.Event()
    monkeypatch.setattr(Results, "_first_tries", note)
    fill(engine, queue, "plain", 1)
    work()
    wait_until(lambda: sql("SELECT status FROM sqlane_jobs") == [("running",)])
    with engine.begin() as rival:
        rival.execute(sa.text("SELECT FROM sqlane_jobs FOR UPDATE")).close()
        locked.set()
        assert passed_over.wait(60)
    let_go.set()
    wait_until(lambda: sql(STATUSES) == [("plain", "completed", 1, 1)])
    assert apart == []
