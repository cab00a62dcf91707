"""Wake-ups: hints that make an idle worker prompt; polling stays the truth."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue, Worker, store
from sqlane_sa.worker.claims import Claims
from tests.followed import Followed
from tests.support import wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]

ASLEEP = "SELECT count(*) FROM sqlane_sleepers"
NEVER = {"poll_interval": 3600, "sweep_interval": 3600}


@pytest.fixture
def asleep(work: Any, sql: Sql) -> Callable[..., Any]:
    """Start a worker that would poll once an hour, and wait until it sleeps."""

    def start(**options: Any) -> Any:
        before = sql(ASLEEP)[0][0]
        worker = work(**(NEVER | options))
        wait_until(lambda: sql(ASLEEP)[0][0] == before + 1)
        wait_until(worker._parts.loop.idle.is_set)
        return worker

    return start


def test_an_enqueue_wakes(queue: Queue, asleep: Any, enqueue: Any, job: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    Followed.only_wake_ups(monkeypatch)
    queue.job("quick")(lambda payload: None)
    worker = asleep()
    followed = Followed(worker)
    for _ in range(5):
        id_ = enqueue("quick")
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
        wait_until(worker._parts.loop.idle.is_set)
    followed.check()


def test_workers_of_one_name_sign_off_each_for_itself(
    queue: Queue, asleep: Any, enqueue: Any, job: Read, sql: Sql
) -> None:
    """As those have that are made before a fork and started in each child, or where the name is that of a machine: what
    is left of them was woken no more."""
    queue.job("quick")(lambda payload: None)
    first = asleep(worker_id="one name")
    asleep(worker_id="one name")
    first.stop()
    assert sql(ASLEEP) == [(1,)]
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")


def test_what_was_asleep_claims_with_the_short_statement(
    queue: Queue, asleep: Any, enqueue: Any, job: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that could complete something, too, takes a tenth of a millisecond longer."""
    claimed: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        claim = getattr(Claims, name)

        def note(*args: Any) -> Any:
            got = claim(*args)
            claimed.extend([name] if getattr(got, "claimed", got) else [])
            return got

        return note

    for name in ("plain", "turn"):
        monkeypatch.setattr(Claims, name, noted(name))
    queue.job("n")(lambda payload: None)
    asleep()
    id_ = enqueue("n")
    wait_until(lambda: job(id_).status == "completed")
    assert claimed == ["plain"]


def test_a_sleeper_learns_of_a_delayed_job(queue: Queue, asleep: Any, enqueue: Any, job: Read) -> None:
    queue.job("quick")(lambda payload: None)
    asleep()
    id_ = enqueue("quick", delay=0.3)
    wait_until(lambda: job(id_).status == "completed")


def test_a_freed_key_wakes_another_worker(queue: Queue, asleep: Any, enqueue: Any, job: Read) -> None:
    go = threading.Event()

    @queue.job("first", mutex_keys=["k"])
    def first(payload: Any) -> None:
        assert go.wait(60)

    queue.job("second", mutex_keys=["k"])(lambda payload: None)
    asleep(names=["first"])
    asleep(names=["second"])
    one = enqueue("first")
    wait_until(lambda: job(one).status == "running")
    two = enqueue("second")
    go.set()
    wait_until(lambda: job(two).status == "completed")


def test_the_end_of_a_linger_is_waited_for(queue: Queue, asleep: Any, enqueue: Any, job: Read, sql: Sql) -> None:
    queue.job("quick", mutex_keys=["k"])(lambda payload: None)
    sql(
        "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token, held_until)"
        " VALUES ('k', 'old', 't', statement_timestamp() + interval '0.5 s')"
    )
    asleep()
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")


def test_a_retry_of_ones_own_is_waited_for(queue: Queue, asleep: Any, enqueue: Any, job: Read) -> None:
    @queue.job("twice", backoff=lambda attempt: 0.3)
    def twice(payload: Any, ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise ValueError

    asleep()
    id_ = enqueue("twice")
    wait_until(lambda: job(id_).status == "completed")


def test_a_recovered_job_is_waited_for(
    queue: Queue, asleep: Any, job: Read, engine: sa.Engine, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep that takes it back tells those who sleep when it is due again."""
    Followed.only_wake_ups(monkeypatch)
    queue.job("quick")(lambda payload: None)
    with engine.begin() as conn:
        id_ = queue.enqueue(conn, "quick").id
        store.claim(conn, queue.tables, candidate_ids=[id_], lock_token="dead", locked_by="dead", lease=3600)
    asleep(sweep_interval=0.2)
    sql("UPDATE sqlane_jobs SET locked_until = statement_timestamp() - interval '1 s'")
    wait_until(lambda: job(id_).status == "completed")
    assert job(id_).stalls == 1


def test_a_job_handed_back_at_a_shutdown_wakes_another_worker(
    queue: Queue, work: Any, asleep: Any, enqueue: Any, job: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    Followed.only_wake_ups(monkeypatch)
    runs: list[str] = []

    @queue.job("long")
    async def long(payload: Any, ctx: JobContext) -> None:
        runs.append(ctx.lock_token)
        if len(runs) == 1:
            await asyncio.sleep(60)

    first = work(shutdown_timeout=0.1, lease=60)
    id_ = enqueue("long")
    wait_until(lambda: runs)
    asleep()
    first.stop()
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).attempts, job(id_).stalls) == (1, 0)


def test_listening_goes_on_after_its_connection_is_lost(
    queue: Queue, asleep: Any, enqueue: Any, job: Read, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B32: also a job enqueued in the gap is found, by the look after the new connection."""
    Followed.only_wake_ups(monkeypatch)
    queue.job("quick")(lambda payload: None)
    worker = asleep()
    followed = Followed(worker)
    (listener,) = sql("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()")
    sql("SELECT pg_terminate_backend(:pid)", pid=listener.pid)
    for _ in range(2):
        id_ = enqueue("quick")
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
        wait_until(worker._parts.loop.idle.is_set)
    followed.check()


def test_without_wakeups_the_worker_polls_and_nobody_is_told(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql
) -> None:
    queue.job("quick")(lambda payload: None)
    work(wakeups=False)
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")
    assert sql(ASLEEP) == [(0,)]
    assert sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()") == []


def test_a_stopped_worker_is_no_sleeper(queue: Queue, asleep: Any, sql: Sql) -> None:
    queue.job("quick")(lambda payload: None)
    asleep().stop()
    assert sql(ASLEEP) == [(0,)]


def test_notifications_are_sent_only_while_somebody_sleeps(
    queue: Queue, engine: sa.Engine, enqueue: Any, sql: Sql, database_url: str
) -> None:
    """One for a transaction, however many jobs it has; none after a rollback."""
    queue.define("quick")
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute(f'LISTEN "{queue.tables.channel}"')
        enqueue("quick")
        sql("INSERT INTO sqlane_sleepers VALUES ('dead', now() - interval '1 s')")
        enqueue("quick")
        assert list(listener.notifies(timeout=0)) == []
        sql("UPDATE sqlane_sleepers SET asleep_until = now() + interval '1 h'")
        with engine.begin() as conn:
            queue.enqueue_many(conn, [queue.new("quick") for _ in range(5000)])
            queue.enqueue(conn, "quick")
        with engine.connect() as conn:
            queue.enqueue(conn, "quick")
            conn.rollback()
        assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
        assert list(listener.notifies(timeout=0)) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts the open files in /proc")
def test_no_files_are_left_open(queue: Queue, engine: sa.Engine) -> None:
    queue.job("quick")(lambda payload: None)

    def run() -> int:
        Worker(engine, queue, **SHORT).run_until_idle()
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    run()
    before = run()
    assert run() <= before


def test_a_process_with_many_open_files(queue: Queue, asleep: Any, enqueue: Any, job: Read) -> None:
    """select() cannot wait for files numbered 1024 and up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"this account may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        queue.job("quick")(lambda payload: None)
        asleep()
        id_ = enqueue("quick")
        wait_until(lambda: job(id_).status == "completed")
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
