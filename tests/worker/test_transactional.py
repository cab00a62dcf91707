"""Handlers in the transaction of their completion."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqlane_sa import DefinitionError, Job, JobContext, Queue, Snooze, SqlaneError, Worker
from sqlane_sa.worker import deadlines
from sqlane_sa.worker.running import LEASE_LOST
from tests.support import wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]


@pytest.fixture
def effects(engine: sa.Engine, sql: Sql) -> Callable[[], list[str]]:
    Base.metadata.create_all(engine)
    return lambda: [row.note for row in sql("SELECT note FROM effects ORDER BY id")]


def write(queue: Queue, fail: type[BaseException] | None = None) -> None:
    @queue.job("write", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects (note) VALUES ('connection')"))
        ctx.session.add(Effect(note="session"))
        ctx.enqueue("after")
        if fail:
            raise fail("no")

    queue.define("after")


def test_effects_and_completion_are_one(
    queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any, sql: Sql
) -> None:
    write(queue)
    id_ = enqueue("write")
    run()
    assert effects() == ["connection", "session"]
    assert job(id_).status == "completed"
    written_by = "SELECT xmin FROM effects WHERE note = 'connection' UNION ALL SELECT xmin FROM sqlane_jobs"
    assert sql(f"SELECT count(DISTINCT CAST(xmin AS text)) FROM ({written_by}) AS x") == [(1,)]


@pytest.mark.parametrize("fail", [ValueError, SystemExit])
def test_a_failed_handler_has_no_effects(
    queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any, sql: Sql, fail: type[BaseException]
) -> None:
    write(queue, fail)
    id_ = enqueue("write")
    run()
    assert effects() == []
    assert job(id_).status == "failed"
    assert sql("SELECT * FROM sqlane_jobs WHERE job_name = 'after'") == []


def test_a_handler_past_its_timeout_has_no_effects(
    queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any
) -> None:
    """Whether or not it looks at `ctx.cancelled`: it returns as if all were well, too late."""

    @queue.job("late", transactional=True, max_attempts=1, timeout=0.1)
    def late(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects (note) VALUES ('late')"))
        assert ctx.cancelled.wait(60)

    id_ = enqueue("late")
    run(lease=60)
    assert effects() == []
    done = job(id_)
    assert (done.status, done.attempts) == ("failed", 1)
    assert done.last_error is not None and done.last_error["type"].endswith("JobTimeoutError")


def test_a_completion_that_waits_for_ever_ends(
    queue: Queue, work: Any, enqueue: Any, engine: sa.Engine, job: Read, monkeypatch: Any, caplog: Any
) -> None:
    """Somebody has locked the row: the slot is not lost with it."""
    monkeypatch.setattr("sqlane_sa.worker.deadlines.SHORTEST", 1.0)
    monkeypatch.setattr("sqlane_sa.worker.deadlines.LONGEST", 1.0)
    go = threading.Event()
    queue.job("write", transactional=True)(lambda payload: go.wait(60) and None)
    id_ = enqueue("write")
    work(lease=60)
    wait_until(lambda: job(id_).status == "running")
    with engine.connect() as rival:
        rival.execute(sa.text("SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE"), {"id": id_})
        go.set()
        wait_until(lambda: "the database did not answer for 1 s" in caplog.text)
        rival.rollback()
    wait_until(lambda: job(id_).status in ("pending", "completed"))


def test_a_lost_lease_rolls_everything_back(
    queue: Queue, work: Any, enqueue: Any, job: Read, effects: Any, sql: Sql
) -> None:
    started, go = threading.Event(), threading.Event()

    @queue.job("write", transactional=True)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.session.add(Effect(note="late"))
        started.set()
        assert go.wait(60)

    id_ = enqueue("write")
    worker = work(lease=60.0)
    assert started.wait(60)
    sql("UPDATE sqlane_jobs SET lock_token = 'another' WHERE id = :id", id=id_)
    go.set()
    wait_until(lambda: len(worker._parts.jobs) == 0)
    assert effects() == []
    assert (job(id_).status, job(id_).lock_token) == ("running", "another")


def test_what_the_worker_takes_for_lost_is_not_completed(
    queue: Queue, work: Any, enqueue: Any, job: Read, effects: Any
) -> None:
    """No renewal came through for a whole lease: nothing of the job is written, though the row is still its own."""
    started, go = threading.Event(), threading.Event()

    @queue.job("write", transactional=True)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.session.add(Effect(note="late"))
        started.set()
        assert go.wait(60)

    id_ = enqueue("write")
    worker = work(lease=60.0)
    assert started.wait(60)
    [held] = worker._parts.jobs.snapshot()
    held.cancel(LEASE_LOST)
    go.set()
    wait_until(lambda: len(worker._parts.jobs) == 0)
    assert effects() == []
    assert (job(id_).status, job(id_).lock_token) == ("running", held.lock_token)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_session_ends_its_savepoint_alone(
    queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any, end: str
) -> None:
    @queue.job("write", transactional=True, max_attempts=2, backoff=lambda attempt: 0)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.session.add(Effect(note="first"))
        ctx.session.flush()
        getattr(ctx.session, end)()
        ctx.session.add(Effect(note="second"))
        if ctx.attempt == 1:
            raise ValueError

    id_ = enqueue("write")
    run()
    assert job(id_).status == "completed"
    assert effects() == (["first", "second"] if end == "commit" else ["second"])


def test_a_released_handler_has_no_effects(queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any) -> None:
    @queue.job("write", transactional=True)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.session.add(Effect(note="x"))
        ctx.session.flush()
        raise Snooze(3600)

    id_ = enqueue("write")
    run()
    assert (effects(), job(id_).status, job(id_).attempts) == ([], "pending", 0)


def test_an_error_of_the_database_is_a_failed_attempt(
    queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any
) -> None:
    @queue.job("write", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.session.add(Effect(id=1, note="a"))
        ctx.session.flush()
        ctx.connection.execute(sa.text("INSERT INTO effects (id, note) VALUES (1, 'b')"))

    id_ = enqueue("write")
    run()
    error = job(id_).last_error
    assert effects() == []
    assert error is not None and "IntegrityError" in error["type"]


def test_other_handlers_have_no_connection(queue: Queue, run: Any, enqueue: Any, job: Read) -> None:
    raised: list[BaseException] = []

    @queue.job("plain")
    def handler(payload: Any, ctx: JobContext) -> None:
        with pytest.raises(DefinitionError, match="transactional=True") as caught:
            _ = ctx.session
        raised.append(caught.value)

    enqueue("plain")
    run()
    assert len(raised) == 1


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("by", ["connection", "the session's connection", "the transaction"])
def test_a_commit_of_the_handler_is_refused(
    queue: Queue, run: Any, enqueue: Any, job: Read, effects: Any, by: str, swallowed: bool
) -> None:
    """It would keep the effects of an attempt whose job does not complete with them."""

    @queue.job("write", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects (note) VALUES ('mine')"))
        transaction = ctx.connection.get_transaction()
        assert transaction is not None
        commit = {
            "connection": ctx.connection.commit,
            "the session's connection": lambda: ctx.session.connection().commit(),
            "the transaction": transaction.commit,
        }[by]
        with contextlib.suppress(*[SqlaneError] if swallowed else []):
            commit()

    id_ = enqueue("write")
    run()
    failed = job(id_)
    assert effects() == []
    assert failed.status == "failed"
    assert "must not commit" in (failed.last_error or {})["message"]


def test_a_coroutine_is_no_result(queue: Queue, run: Any, enqueue: Any, job: Read) -> None:
    async def work(payload: Any) -> None:
        raise AssertionError("never awaited")

    queue.job("lambda", transactional=True, max_attempts=1)(lambda payload: work(payload))
    id_ = enqueue("lambda")
    run()
    assert job(id_).status == "failed"
    assert "async def" in (job(id_).last_error or {})["message"]


def test_a_connection_that_broke_while_idle_costs_no_attempt(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql
) -> None:
    pids: list[int] = []

    @queue.job("write", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        pids.append(ctx.connection.scalar(sa.text("SELECT pg_backend_pid()")) or 0)

    work()
    for _ in range(2):
        id_ = enqueue("write")
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
        sql("SELECT pg_terminate_backend(:pid, 10000)", pid=pids[-1])
    assert pids[0] != pids[1]


def test_a_transaction_that_cannot_be_opened_costs_no_attempt(
    queue: Queue, run: Any, enqueue: Any, job: Read, engine: sa.Engine, database_url: str
) -> None:
    """The server refuses another connection; the handler was not called."""
    on, refused = sa.create_engine(database_url), iter(range(1))

    @sa.event.listens_for(on, "do_connect")
    def refuse(dialect: Any, record: Any, args: Any, options: dict[str, Any]) -> None:
        if threading.current_thread().name.startswith("sqlane-handler") and next(refused, None) is not None:
            options["dbname"] = "no such database"

    called: list[int] = []
    queue.job("write", transactional=True, max_attempts=1)(lambda payload, ctx: called.append(ctx.attempt))
    id_ = enqueue("write")
    with Worker(on, queue, **SHORT):
        wait_until(lambda: job(id_).status == "completed")
    on.dispose()
    assert called == [1]
    assert next(refused, None) is None


def test_a_transaction_that_cannot_be_opened_keeps_its_place(
    queue: Queue, enqueue: Any, job: Read, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the line of its key, whose next job does not start before it; and the log says it once."""
    on, refused = sa.create_engine(database_url, poolclass=sa.NullPool), iter(range(3))

    @sa.event.listens_for(on, "do_connect")
    def refuse(dialect: Any, record: Any, args: Any, options: dict[str, Any]) -> None:
        if threading.current_thread().name.startswith("sqlane-handler") and next(refused, None) is not None:
            options["dbname"] = "no such database"

    called: list[int] = []
    queue.job("write", transactional=True, max_attempts=1, mutex_keys=lambda payload: ["k"])(called.append)
    ids = [enqueue("write", n) for n in range(4)]
    with Worker(on, queue, **SHORT):
        wait_until(lambda: {job(id_).status for id_ in ids} == {"completed"})
    on.dispose()
    assert called == [0, 1, 2, 3]
    assert caplog.text.count("is released") == 1


def test_sessions_from_a_read_only_period_are_not_used_again(
    queue: Queue, work: Any, enqueue: Any, job: Read, effects: Any, engine: sa.Engine, sql: Sql
) -> None:
    """B29: after the switch old sessions would be read-only for ever; the next attempt has a new one."""
    effects()
    pids: set[int] = set()

    @queue.job("write", transactional=True, max_attempts=2, backoff=lambda attempt: 0)
    def handler(payload: Any, ctx: JobContext) -> None:
        if ctx.attempt == 1:
            ctx.connection.execute(sa.text("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"))
            ctx.connection.execute(sa.text("SET TRANSACTION READ ONLY"))
        pids.add(ctx.connection.scalar(sa.text("SELECT pg_backend_pid()")) or 0)
        ctx.connection.execute(sa.text("INSERT INTO effects (note) VALUES ('mine')"))

    work(concurrency=1)
    id_ = enqueue("write")
    wait_until(lambda: job(id_).status == "completed")
    assert effects() == ["mine"]
    assert len(pids) == 2


def test_what_a_transactional_job_costs(
    queue: Queue, enqueue: Any, job: Read, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: a begin and a commit each, and the completion with it, of which listeners do not hear; a
    connection is not tried between them. They do hear of each checkout."""
    on, counts = sa.create_engine(database_url), Counter[str]()

    def count(kind: str) -> Callable[..., None]:
        def counted(*_: Any) -> None:
            counts[kind] += threading.current_thread().name.startswith("sqlane-handler")

        return counted

    for kind in ("begin", "before_cursor_execute", "commit", "rollback", "checkout", "connect"):
        sa.event.listen(on, kind, count(kind))
    ping = on.dialect.do_ping
    monkeypatch.setattr(on.dialect, "do_ping", lambda connection: (count("ping")(), ping(connection))[1])
    monkeypatch.setattr("sqlane_sa.worker.handler_engine.TRUSTED", 3600.0)
    dup = deadlines.dup
    monkeypatch.setattr(deadlines, "dup", lambda number: (count("watched")(), dup(number))[1])
    queue.job("write", transactional=True)(lambda payload: None)
    ids = [enqueue("write") for _ in range(30)]
    with Worker(on, queue, **SHORT | {"lease": 60.0, "concurrency": 1}):
        wait_until(lambda: {job(id_).status for id_ in ids} == {"completed"})
    on.dispose()
    assert counts.pop("connect") == 1
    assert counts.pop("watched") == 1 + 30  # also while it connects
    assert counts == {"begin": 30, "commit": 30, "checkout": 30}


def test_an_idle_connection_is_tried(
    queue: Queue, run: Any, enqueue: Any, job: Read, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pings: list[int] = []
    ping = engine.dialect.do_ping
    monkeypatch.setattr(engine.dialect, "do_ping", lambda connection: (pings.append(1), ping(connection))[1])
    monkeypatch.setattr("sqlane_sa.worker.handler_engine.TRUSTED", 0.0)
    queue.job("write", transactional=True)(lambda payload: None)
    ids = [enqueue("write") for _ in range(5)]
    run(concurrency=1)
    assert {job(id_).status for id_ in ids} == {"completed"}
    assert len(pings) == 4


def test_a_connection_that_breaks_right_after_its_use_costs_no_attempt(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not asked whether it is there, but it is seen that it is not."""
    monkeypatch.setattr("sqlane_sa.worker.handler_engine.TRUSTED", 3600.0)
    pids: list[int] = []

    @queue.job("write", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        pids.append(ctx.connection.scalar(sa.text("SELECT pg_backend_pid()")) or 0)

    work()
    for _ in range(3):
        id_ = enqueue("write")
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
        sql("SELECT pg_terminate_backend(:pid, 10000)", pid=pids[-1])
    assert len(set(pids)) == 3


def test_a_search_path_of_its_own(engine: sa.Engine) -> None:
    """As where each customer has a schema: the queue names its own, and so do its statements."""
    queue = Queue(schema="public")
    seen: list[str] = []

    @queue.job("look", transactional=True, max_attempts=1)
    def look(payload: object, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("SET LOCAL search_path TO pg_catalog"))
        ctx.enqueue("after")
        seen.append("look")

    queue.job("after")(lambda payload: seen.append("after"))
    with engine.begin() as conn:
        queue.enqueue(conn, "look")
    Worker(engine, queue, **SHORT).run_until_idle()
    assert seen == ["look", "after"]
