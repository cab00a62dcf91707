"""The end of a transactional handler: the completion of its job and COMMIT, sent together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sqlane_sa import Job, JobContext, Queue, Worker, migrations
from sqlane_sa.sqlstate import sqlstate
from sqlane_sa.statement import Statement
from sqlane_sa.store import last_step, together
from tests.support import PARAMETER_LIKE, wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]
Listen = Callable[..., sa.Engine]


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each of them has sent."""
    sent: list[int] = []
    exchange = together.exchange
    monkeypatch.setattr(
        together, "exchange", lambda raw, pq, calls: (sent.append(len(calls)), exchange(raw, pq, calls))[1]
    )
    return sent


@pytest.fixture
def application(database_url: str) -> Iterator[Callable[..., sa.Engine]]:
    """Makes an engine of the application's."""
    engines: list[sa.Engine] = []

    def make(**options: Any) -> sa.Engine:
        engines.append(sa.create_engine(database_url, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


def completed(sql: Sql) -> bool:
    return sql("SELECT DISTINCT status, attempts, stalls FROM sqlane_jobs") == [("completed", 1, 0)]


def test_one_round_trip(queue: Queue, run: Any, enqueue: Any, sql: Sql, exchanges: list[int]) -> None:
    queue.job("idle", transactional=True)(lambda payload: None)
    queue.job("writes", transactional=True, mutex_keys=["k"])(lambda payload, ctx: ctx.enqueue("other") and None)
    queue.define("other", max_attempts=1)
    for name in ("idle", "writes", "idle"):
        enqueue(name)
    run(concurrency=1)
    assert sql("SELECT job_name, status FROM sqlane_jobs ORDER BY 1") == [
        ("idle", "completed"),
        ("idle", "completed"),
        ("other", "pending"),
        ("writes", "completed"),
    ]
    # Each statement is prepared once: two, and a third that frees keys. Then all of them and COMMIT; and BEGIN, unless
    # the handler has written something, or the session was asked what is prepared there. Whether the job with a key
    # comes second or last depends on which of two claims is first.
    assert exchanges in ([1, 1, 3, 4, 1, 4], [1, 1, 3, 1, 4, 4])
    assert sql("SELECT count(*) FROM sqlane_mutexes") == [(0,)]


def test_where_nothing_may_be_prepared(
    queue: Queue, application: Listen, enqueue: Any, sql: Sql, exchanges: list[int]
) -> None:
    """As behind a pooler: one statement after the other."""
    queue.job("idle", transactional=True)(lambda payload: None)
    enqueue("idle")
    Worker(application(connect_args={"prepare_threshold": None}), queue, **SHORT).run_until_idle()
    assert completed(sql)
    assert exchanges == []


def test_a_row_that_somebody_changes_meanwhile(
    queue: Queue, work: Any, enqueue: Any, engine: sa.Engine, job: Read, exchanges: list[int]
) -> None:
    """The completion waits, and finds it changed and still its own."""
    go = threading.Event()
    queue.job("waits", transactional=True)(lambda payload: go.wait(60) and None)
    id_ = enqueue("waits")
    work(lease=60)
    wait_until(lambda: job(id_).status == "running")
    with engine.begin() as rival:
        rival.execute(sa.text("UPDATE sqlane_jobs SET updated_at = updated_at WHERE id = :id"), {"id": id_})
        go.set()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        wait_until(lambda: rival.scalar(sa.text(waiting)) == 1)
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).attempts, job(id_).stalls) == (1, 0)
    assert exchanges == [1, 1, 3]


def test_a_retention_of_zero(queue: Queue, run: Any, enqueue: Any, sql: Sql, exchanges: list[int]) -> None:
    queue.job("gone", transactional=True, completed_retention=0)(lambda payload: None)
    enqueue("gone")
    run()
    assert sql("SELECT (SELECT count(*) FROM sqlane_jobs), (SELECT count(*) FROM sqlane_payloads)") == [(0, 0)]
    assert exchanges == [1, 1, 3]


def test_what_the_commit_refuses(queue: Queue, run: Any, enqueue: Any, job: Read, sql: Sql) -> None:
    """A deferred constraint: the attempt has failed, and nothing of it is kept."""
    sql("CREATE TABLE parents (id int PRIMARY KEY)")
    sql("CREATE TABLE children (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")

    @queue.job("orphan", transactional=True, max_attempts=1)
    def orphan(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO children VALUES (1)"))

    id_ = enqueue("orphan")
    run()
    assert job(id_).status == "failed"
    assert (job(id_).last_error or {})["type"] == "sqlalchemy.exc.IntegrityError"
    assert sql("SELECT count(*) FROM children") == [(0,)]


def test_a_listener_that_refuses_the_commit(
    queue: Queue, application: Listen, enqueue: Any, job: Read, sql: Sql
) -> None:
    """It is called before anything is committed."""
    sql("CREATE TABLE effects (n int)")
    on = application()

    @sa.event.listens_for(on, "commit")
    def refuse(conn: sa.Connection) -> None:
        if threading.current_thread().name.startswith("sqlane-handler"):
            raise ValueError("not now")

    @queue.job("writes", transactional=True, max_attempts=1)
    def writes(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects VALUES (1)"))

    id_ = enqueue("writes")
    Worker(on, queue, **SHORT).run_until_idle()
    assert (job(id_).status, (job(id_).last_error or {})["message"]) == ("failed", "not now")
    assert sql("SELECT count(*) FROM effects") == [(0,)]


@pytest.mark.parametrize("reset", ["rollback", None])
def test_sessions_after_a_failure(
    queue: Queue, application: Listen, enqueue: Any, sql: Sql, exchanges: list[int], caplog: Any, reset: str | None
) -> None:
    """Psycopg deallocates what is prepared in a session when it rolls back, if it has prepared something itself."""
    work = {"fails": ValueError, "loses its lock": None, "good": None}

    @queue.job("n", transactional=True, max_attempts=1)
    def handler(payload: str, ctx: JobContext) -> None:
        for _ in range(10):
            ctx.connection.execute(sa.text("SELECT 1"))
        if payload == "loses its lock":
            sql("UPDATE sqlane_jobs SET lock_token = 'another' WHERE id = :id", id=ctx.id)
        if error := work[payload]:
            raise error

    for payload in ("good", "fails", "good", "loses its lock", "good", "fails", "loses its lock", "good"):
        enqueue("n", payload)
    worker = Worker(application(pool_reset_on_return=reset), queue, **SHORT | {"concurrency": 1, "lease": 600.0})
    with worker:
        states = "SELECT status, count(*) FROM sqlane_jobs GROUP BY 1 ORDER BY 1"
        wait_until(lambda: sql(states) == [("completed", 4), ("failed", 2), ("running", 2)])
    assert len([n for n in exchanges if n > 1]) == 6
    assert "prepared" not in caplog.text


def test_a_listener_that_deallocates(
    queue: Queue, application: Listen, enqueue: Any, sql: Sql, exchanges: list[int], caplog: Any
) -> None:
    """The job whose session it was is released and uses no attempt; from then on nothing is sent together."""
    on = application()

    @sa.event.listens_for(on, "checkout")
    def deallocate(connection: Any, record: Any, proxy: Any) -> None:
        if threading.current_thread().name.startswith("sqlane-handler"):
            connection.execute("DEALLOCATE ALL")
            connection.commit()

    queue.job("idle", transactional=True, max_attempts=1)(lambda payload: None)
    for _ in range(5):
        enqueue("idle")
    Worker(on, queue, **SHORT | {"concurrency": 1}).run_until_idle()
    assert completed(sql)
    assert "its session has lost its prepared statements" in caplog.text
    assert [n for n in exchanges if n > 1] == [3, 4]


@pytest.mark.parametrize("by", ["connection", "session"])
def test_a_handler_that_rolls_back(queue: Queue, run: Any, enqueue: Any, job: Read, sql: Sql, by: str) -> None:
    """The attempt has failed, and says so: there is no transaction to complete the job in."""
    sql("CREATE TABLE effects (n int)")

    @queue.job("n", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        on = ctx.connection if by == "connection" else Session(ctx.connection)
        on.execute(sa.text("INSERT INTO effects VALUES (1)"))
        on.rollback()

    id_ = enqueue("n")
    run()
    assert (job(id_).status, (job(id_).last_error or {})["type"]) == ("failed", "sqlalchemy.exc.InvalidRequestError")
    assert sql("SELECT count(*) FROM effects") == [(0,)]


@pytest.mark.parametrize("reset", ["rollback", None])
def test_an_exception_before_anything_is_sent(
    queue: Queue, application: Listen, enqueue: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch, reset: str | None
) -> None:
    """What the handler wrote is not left to the next job's commit."""
    sql("CREATE TABLE effects (id text)")
    calls = together._with_commit
    thrown: list[ValueError] = []

    def throw_once(*arguments: Any) -> Any:
        if not thrown:
            thrown.append(ValueError("thrown into the thread"))
            raise thrown[0]
        return calls(*arguments)

    monkeypatch.setattr(together, "_with_commit", throw_once)

    @queue.job("n", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects VALUES (:id)"), {"id": ctx.id})

    failed, good = enqueue("n"), enqueue("n")
    Worker(application(pool_reset_on_return=reset), queue, **SHORT | {"concurrency": 1}).run_until_idle()
    assert sql("SELECT id, status FROM sqlane_jobs ORDER BY id") == [(failed, "failed"), (good, "completed")]
    assert sql("SELECT id FROM effects") == [(good,)]


def test_a_session_that_is_ended_meanwhile(queue: Queue, engine: sa.Engine) -> None:
    """The error is the server's, which says why, as that of any other commit."""
    ends = Statement("SELECT pg_terminate_backend(pg_backend_pid())", {}).numbered(queue.tables)
    with engine.connect() as conn:
        conn.execute(sa.text("SELECT 1"))
        with pytest.raises(DBAPIError) as caught, together.commits_after(conn, [together.Part.of(ends, {})]):
            conn.commit()
        assert conn.invalidated
    assert (caught.value.connection_invalidated, sqlstate(caught.value)) == (True, "57P01")


@pytest.mark.parametrize("what", ["savepoint", "DROP TABLE scratch"])
def test_a_handler_after_which_psycopg_deallocates(
    queue: Queue, application: Listen, enqueue: Any, sql: Sql, exchanges: list[int], caplog: Any, what: str
) -> None:
    """It is called once, and what follows is sent together again."""
    calls: list[str] = []

    @queue.job("n", transactional=True, max_attempts=1)
    def handler(payload: str, ctx: JobContext) -> None:
        calls.append(payload)
        for _ in range(10):
            ctx.connection.execute(sa.text("SELECT 1"))  # by then psycopg has prepared it
        if payload == "savepoint":
            with pytest.raises(sa.exc.DBAPIError), ctx.connection.begin_nested():
                ctx.connection.execute(sa.text("SELECT 1 / 0"))
        elif payload:
            ctx.connection.execute(sa.text("CREATE TEMPORARY TABLE scratch ()"))
            ctx.connection.execute(sa.text(payload))

    for payload in ("", what, ""):
        enqueue("n", payload)
    Worker(application(), queue, **SHORT | {"concurrency": 1}).run_until_idle()
    assert completed(sql)
    assert calls == ["", what, ""]
    assert len([n for n in exchanges if n > 1]) == 3
    assert "prepared" not in caplog.text


def test_a_handler_that_detaches_its_connection(queue: Queue, run: Any, enqueue: Any, sql: Sql) -> None:
    """It commits and completes as ever."""
    sql("CREATE TABLE effects (n int)")

    @queue.job("n", transactional=True, max_attempts=1)
    def handler(payload: Any, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects VALUES (1)"))
        ctx.connection.detach()

    enqueue("n")
    run()
    assert completed(sql)
    assert sql("SELECT count(*) FROM effects") == [(1,)]


def test_a_prefix_that_looks_like_a_parameter(engine: sa.Engine) -> None:
    queue = Queue(prefix=PARAMETER_LIKE.replace("(a)", "(id)"))
    migrations.apply(engine, queue)
    queue.job("n", transactional=True, max_attempts=1)(lambda payload: None)
    with engine.begin() as conn:
        id_ = queue.enqueue(conn, "n").id
    Worker(engine, queue, **SHORT).run_until_idle()
    with engine.connect() as conn:
        found = queue.get(conn, id_)
    assert found is not None and found.status == "completed"


class Counting(psycopg.Connection[Any]):
    """Whose commit does more."""

    commits = 0

    def commit(self) -> None:
        super().commit()
        if threading.current_thread().name.startswith("sqlane-handler"):
            Counting.commits += 1


def test_a_connection_with_a_commit_of_its_own(
    queue: Queue, application: Listen, database_url: str, enqueue: Any, sql: Sql, exchanges: list[int]
) -> None:
    """It is called."""
    url = sa.make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    on = application(creator=lambda: Counting.connect(url))
    queue.job("idle", transactional=True)(lambda payload, ctx: ctx.connection.execute(sa.text("SELECT 1")) and None)
    enqueue("idle")
    Counting.commits = 0
    Worker(on, queue, **SHORT).run_until_idle()
    assert completed(sql)
    assert Counting.commits > 0
    assert exchanges == []


def test_a_plan_of_when_the_table_was_small(queue: Queue, engine: sa.Engine, enqueue: Any) -> None:
    """It would scan the table for as long as the session lasts."""
    queue.define("n")
    enqueue("n")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(sa.text("ANALYZE sqlane_jobs"))
    pin, complete = (
        together.Part.of(last_step.PIN.numbered(queue.tables), {"idle_ms": 1000}),
        together.Part.of(last_step.COMPLETE_ONE.numbered(queue.tables), {"id": "x", "token": "y"}),
    )
    scans = sa.text("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'sqlane_jobs'")

    def scanned(*parts: together.Part) -> int:
        with engine.connect() as conn:
            raw: Any = conn.connection.driver_connection
            pq = engine.dialect.loaded_dbapi.pq  # type: ignore[attr-defined]
            assert together._prepare(raw, pq, {}, parts) is None
            before = conn.scalar(scans) or 0  # of earlier transactions, not sent to the statistics yet
            conn.execute(sa.text("SAVEPOINT before"))
            assert (
                together.exchange(raw, pq, together._with_commit(raw, pq, parts)[:-1]) is not None
            )  # it is nobody's job
            conn.execute(sa.text("ROLLBACK TO before"))
            return int(conn.scalar(scans) or 0) - before

    assert scanned(complete) > 0
    assert scanned(pin, complete) == 0
