"""Isolation levels, outages, and what the worker does on its connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sqlane_sa import Job, JobContext, Queue, Worker, WorkerError
from sqlane_sa.demo.server import Server
from sqlane_sa.migrations import apply
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import UNLIMITED
from tests.support import wait_until
from tests.worker.conftest import SHORT

pytestmark = pytest.mark.slow

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]


NOTE_LEVELS = """
CREATE TABLE levels (level text);
CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO levels VALUES (current_setting('transaction_isolation')); RETURN NULL; END $$;
CREATE TRIGGER note_level AFTER UPDATE ON sqlane_jobs FOR EACH STATEMENT EXECUTE FUNCTION note_level()"""


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT", "by the database", "by an option"])
def test_each_job_runs_once_at_any_isolation_level(
    queue: Queue, database_url: str, engine: sa.Engine, sql: Sql, level: str
) -> None:
    """G76, G80: workers pin their own transactions to READ COMMITTED, and what they send without one."""
    ran: list[int] = []
    seen: set[str] = set()

    @queue.job("count", transactional=True)
    def count(payload: int, ctx: JobContext) -> None:
        seen.add(str(ctx.connection.scalar(sa.text("SHOW transaction_isolation"))))
        ran.append(payload)

    queue.job("plain")(ran.append)
    if level == "by the database":
        name = engine.url.database
        sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        on = sa.create_engine(database_url)
    elif level == "by an option":
        on = sa.create_engine(database_url).execution_options(isolation_level="SERIALIZABLE")
    else:
        on = sa.create_engine(database_url, isolation_level=level)  # type: ignore[arg-type]
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("plain", n) for n in range(2000)))
        queue.enqueue_many(conn, (queue.new("count", n) for n in range(2000, 2050)))
    with engine.begin() as conn:
        conn.exec_driver_sql(NOTE_LEVELS)
    threads = [threading.Thread(target=Worker(on, queue, **(SHORT | {"lease": 60})).run_until_idle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    on.dispose()
    assert sorted(ran) == list(range(2050))
    assert seen == {"read committed"}
    assert sql("SELECT DISTINCT level FROM levels") == [("read committed",)]
    assert sql("SELECT DISTINCT status, attempts, stalls FROM sqlane_jobs") == [("completed", 1, 0)]


def test_a_transaction_on_an_autocommit_engine(database_url: str, queue: Queue, sql: Sql) -> None:
    """G80: after a statement in autocommit, too, all of a transaction is written or nothing."""
    queue.define("n")
    on = sa.create_engine(database_url, isolation_level="AUTOCOMMIT")
    connector = Connector(on, UNLIMITED)
    database = connector.database()
    with database.statement() as conn:
        conn.exec_driver_sql("SELECT 1")
    with pytest.raises(RuntimeError), database.transaction() as conn:
        queue.enqueue(conn, "n")
        raise RuntimeError
    database.close()
    connector.close()
    on.dispose()
    assert sql("SELECT id FROM sqlane_jobs") == []


def test_a_transactional_handler_on_an_autocommit_engine(
    database_url: str, queue: Queue, enqueue: Any, sql: Sql
) -> None:
    """G80: what it wrote goes with its failure."""

    @queue.job("fails", transactional=True, max_attempts=1)
    def fails(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue("fails", delay=3600)
        raise RuntimeError("late")

    id_ = enqueue("fails")
    on = sa.create_engine(database_url, isolation_level="AUTOCOMMIT")
    Worker(on, queue, **SHORT).run_until_idle()
    on.dispose()
    assert sql("SELECT id, status FROM sqlane_jobs") == [(id_, "failed")]


def worker_pids(sql: Sql) -> list[int]:
    rows = sql(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND query NOT LIKE '%from the test%'"
    )
    return [row.pid for row in rows]


def test_every_connection_may_be_terminated(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql, caplog: Any
) -> None:
    """B26: one after the other, with a job under way; the worker goes on with new ones."""
    go = threading.Event()

    @queue.job("wait")
    def wait(payload: Any) -> None:
        assert go.wait(60)

    queue.job("quick")(lambda payload: None)
    id_ = enqueue("wait")
    work(lease=1.5)
    wait_until(lambda: job(id_).status == "running")
    wait_until(lambda: len(worker_pids(sql)) >= 4)
    for pid in worker_pids(sql):
        sql("SELECT pg_terminate_backend(:pid) /* from the test */", pid=pid)
        quick = enqueue("quick")
        wait_until(lambda: job(quick).status == "completed")  # noqa: B023
    go.set()
    wait_until(lambda: job(id_).status == "completed")
    assert (job(id_).attempts, job(id_).stalls) == (1, 0)


def test_a_read_only_period_ends_without_a_restart(
    queue: Queue, work: Any, enqueue: Any, job: Read, engine: sa.Engine, sql: Sql
) -> None:
    """B29: as on a server that was the primary; connections from before are read-only for ever."""
    go, name = threading.Event(), engine.url.database

    @queue.job("wait")
    def wait(payload: Any) -> None:
        assert go.wait(60)

    ids = [enqueue("wait")]
    worker = work()
    wait_until(lambda: job(ids[0]).status == "running")
    ids += [enqueue("wait") for _ in range(5)]
    sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    for pid in worker_pids(sql):
        sql("SELECT pg_terminate_backend(:pid) /* from the test */", pid=pid)
    go.set()
    failures = worker._parts.services[-1]._outage
    wait_until(lambda: failures._failures >= 2)
    with engine.connect() as conn:
        conn.execute(sa.text("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE"))
        conn.commit()
        conn.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_read_only = off"))
        conn.commit()
    for id_ in ids:
        wait_until(lambda: job(id_).status == "completed")  # noqa: B023
        assert (job(id_).attempts, job(id_).stalls) == (1, 0)


def test_a_restarted_server(queue: Queue, caplog: Any) -> None:
    """B26: stopped while a job runs, and started again; one line for the outage of each part."""
    go = threading.Event()

    @queue.job("wait")
    def wait(payload: Any) -> None:
        assert go.wait(60)

    with Server(fsync=False) as server:
        engine = sa.create_engine(server.url(), pool_pre_ping=True)
        apply(engine, queue)
        with engine.begin() as conn:
            id_ = queue.enqueue(conn, "wait").id
        with Worker(engine, queue, **(SHORT | {"lease": 60.0})) as worker:

            def status() -> str:
                with engine.connect() as conn:
                    return queue.get(conn, id_).status  # type: ignore[union-attr]

            wait_until(lambda: status() == "running")
            server.stop()
            outage = worker._parts.services[-1]._outage  # type: ignore[union-attr]
            wait_until(lambda: outage._failures >= 3)
            server.start()
            go.set()
            wait_until(lambda: status() == "completed")
        engine.dispose()
    lines = [
        record.message
        for record in caplog.records
        if record.levelname == "WARNING" and record.message.startswith("loop:")
    ]
    assert [line for line in lines if "trying again" in line] == lines[:1]


PARTS = ["loop", "heartbeat", "sweeper", "listener", "timer", "writer", "deadlines", "tally"]
ERRORS = {"a bug": RuntimeError("a bug"), "the database": sa.exc.OperationalError("SELECT 1", {}, Exception("gone"))}


def nudge(worker: Any, service: Any, sql: Sql) -> None:
    """Let the part come round."""
    service.wake()
    worker._parts.timer.wake.set()
    worker._parts.jobs.gathered.set()
    worker._parts.tally._news.set()
    worker._parts.loop.wake()
    sql("SELECT pg_notify(:channel, '')", channel=worker.queue.tables.channel)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that come round by themselves alone do so within 2 s."""
    monkeypatch.setattr("sqlane_sa.worker.listener.PING_INTERVAL", 2.0)
    monkeypatch.setattr("sqlane_sa.worker.deadlines.SHORTEST", 2.0)
    monkeypatch.setattr("sqlane_sa.worker.parts.FLUSH_GRACE", 2.0)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_once_goes_on(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql, soon: None, part: str, error: str
) -> None:
    """B27: each thread is there after an error of its own, or of the database."""
    queue.job("quick")(lambda payload: None)
    worker = work(lease=6)
    assert {one.name for one in worker._parts.services} == set(PARTS)
    (service,) = (one for one in worker._parts.services if one.name == part)
    original, raised = service._run_once, threading.Event()

    def fail_once() -> float:
        service._run_once = original
        raised.set()
        raise ERRORS[error]

    service._run_once = fail_once
    wait_until(lambda: raised.is_set() or nudge(worker, service, sql))
    id_ = enqueue("quick")
    wait_until(lambda: job(id_).status == "completed")
    assert service._thread.is_alive()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_for_ever_ends_the_worker(
    queue: Queue, work: Any, sql: Sql, monkeypatch: Any, soon: None, part: str
) -> None:
    """B27: never alive with a dead part; the error names it."""
    monkeypatch.setattr("sqlane_sa.worker.service.LAST_BACKOFF", 0.01)
    queue.job("quick")(lambda payload: None)
    worker = work(lease=6, shutdown_timeout=0.1)
    (service,) = (one for one in worker._parts.services if one.name == part)

    def fail() -> float:
        raise RuntimeError("a bug")

    service._run_once = fail
    wait_until(lambda: worker.failure or nudge(worker, service, sql))
    with pytest.raises(WorkerError, match=part):
        worker.stop()


def test_a_worker_whose_renewals_fail_loses_its_leases(
    queue: Queue, work: Any, enqueue: Any, job: Read, sql: Sql
) -> None:
    """A19: the handler is told, no success is reported, another run follows once the database lets renewals through."""
    reasons: list[str | None] = []
    runs: list[int] = []

    @queue.job("wait")
    def wait(payload: Any, ctx: JobContext) -> None:
        runs.append(1)
        if len(runs) == 1:
            assert ctx.cancelled.wait(60)
            reasons.append(ctx.cancel_reason)

    id_ = enqueue("wait")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.status = 'running' AND OLD.status = 'running' THEN RAISE query_canceled; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    work(lease=0.6)
    done = wait_until(lambda: one if (one := job(id_)).status == "completed" else None)
    wait_until(lambda: reasons == ["lease lost"])
    assert (len(runs), done.attempts, done.stalls) == (2, 1, 1)


def test_transactional_handlers_are_not_short_of_connections(
    queue: Queue, database_url: str, engine: sa.Engine, job: Read
) -> None:
    """More of them at a time than the application's pool may open; its events and options hold for them."""
    small = sa.create_engine(database_url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    statements: list[str] = []
    sa.event.listen(small, "before_cursor_execute", lambda conn, cursor, sql, *rest: statements.append(sql))
    small = small.execution_options(mine=True)
    together = threading.Barrier(4, timeout=60)
    options: list[bool] = []

    @queue.job("meet", transactional=True, max_attempts=1)
    def meet(payload: object, ctx: JobContext) -> None:
        ctx.connection.execute(sa.text("SELECT 'of the handler'"))
        options.append(ctx.connection.get_execution_options()["mine"])
        together.wait()

    with engine.begin() as conn:
        added = queue.enqueue_many(conn, [queue.new("meet") for _ in range(4)])
    Worker(small, queue, **SHORT).run_until_idle()
    small.dispose()
    assert [job(one.id).status for one in added] == ["completed"] * 4
    assert options == [True] * 4
    assert statements.count("SELECT 'of the handler'") == 4


@pytest.mark.parametrize("error", [RuntimeError("no password from the vault"), OSError(24, "Too many open files")])
def test_an_outage_of_the_applications_creator(
    database_url: str,
    queue: Queue,
    enqueue: Any,
    job: Read,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """What connecting fails with says nothing about the results that wait: none is thrown away, and no attempt used."""
    url = sa.make_url(database_url).set(drivername="postgresql").render_as_string(False)
    down, returned, called = threading.Event(), threading.Event(), list[str]()

    def create() -> psycopg.Connection[Any]:
        if down.is_set():
            raise error
        return psycopg.connect(url)

    @queue.job("plain", max_attempts=1)
    def plain(payload: str) -> None:
        called.append(payload)
        assert returned.wait(60)

    queue.job("own", transactional=True, max_attempts=1)(lambda payload: called.append(payload))
    ids = [enqueue("plain", "a"), enqueue("plain", "b")]
    engine = sa.create_engine("postgresql+psycopg://", creator=create)
    with Worker(engine, queue, **SHORT | {"lease": 20.0}) as worker:
        wait_until(lambda: len(called) == 2)
        down.set()
        ids.append(enqueue("own", "c"))
        wait_until(lambda: "its transaction could not be opened" in caplog.text)
        for pid in worker_pids(sql):
            sql("SELECT pg_terminate_backend(:pid)", pid=pid)
        returned.set()
        wait_until(lambda: worker._parts.loop._jobs.finished)  # type: ignore[union-attr]
        threading.Event().wait(1.0)
        down.clear()
        wait_until(lambda: {job(id_).status for id_ in ids} == {"completed"})
    engine.dispose()
    assert sorted(called) == ["a", "b", "c"]
    assert [(job(id_).attempts, job(id_).stalls) for id_ in ids] == [(1, 0)] * 3


def test_the_application_connects_while_a_worker_comes_and_goes(database_url: str, queue: Queue) -> None:
    """A listener that takes its time, as for a password from elsewhere, is not disturbed."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    within, go_on = threading.Event(), threading.Event()

    @sa.event.listens_for(engine, "do_connect")
    def password(dialect: Any, record: Any, args: Any, options: dict[str, Any]) -> None:
        if threading.current_thread() is connecting:
            within.set()
            go_on.wait(60)

    answers = list[object]()

    def connect() -> None:
        try:
            with engine.connect() as conn:
                answers.append(conn.scalar(sa.text("SELECT 1")))
        except Exception as error:
            answers.append(error)

    queue.job("any")(lambda payload: None)
    connecting = threading.Thread(target=lambda: None)
    for change in ("start", "stop"):
        worker = Worker(engine, queue, **SHORT)
        if change == "stop":
            worker.start()
        within.clear()
        go_on.clear()
        connecting = threading.Thread(target=connect)
        connecting.start()
        assert within.wait(60)
        if change == "start":
            worker.start()
        else:
            worker.stop()
        go_on.set()
        connecting.join(60)
        worker.stop()
    assert answers == [1, 1]


@pytest.mark.parametrize("moment", ["connect", "checkout"])
def test_listeners_that_leave_a_transaction_open(
    database_url: str, queue: Queue, enqueue: Any, job: Read, moment: str
) -> None:
    """As the application may: on its own connections the next statement goes on in it."""
    engine = sa.create_engine(database_url)

    @sa.event.listens_for(engine, moment)
    def ask(connection: Any, *_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO public")

    queue.job("plain")(lambda payload: None)
    queue.job("own", transactional=True)(lambda payload: None)
    ids = [enqueue("plain"), enqueue("own")]
    with Worker(engine, queue, **SHORT):
        wait_until(lambda: {job(id_).status for id_ in ids} == {"completed"})
    engine.dispose()


def test_errors_of_the_workers_own_connections_hide_their_parameters(engine: sa.Engine) -> None:
    """J109: whatever the application's engine does; that of handlers is a connector's, too."""
    connector = Connector(engine, UNLIMITED)
    database = connector.database()
    with pytest.raises(DBAPIError) as caught, database.transaction() as conn:
        conn.execute(sa.text("SELECT 1 / 0 FROM (SELECT CAST(:secret AS text)) AS s"), {"secret": "canary"})
    database.close()
    connector.close()
    assert "parameters hidden" in str(caught.value) and "canary" not in str(caught.value)
