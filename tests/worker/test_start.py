"""The start of a worker whose database is not there yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, WorkerError, migrations
from sqlane_sa.demo.server import Server
from tests.support import wait_until
from tests.worker.conftest import SHORT

Make = Callable[..., Worker]


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """Stopped at the start of each test that wants it so."""
    with Server(fsync=False, tcp=True) as server:
        yield server


@pytest.fixture
def far(own_server: Server) -> Iterator[sa.Engine]:
    own_server.start()
    engine = sa.create_engine(own_server.url(tcp=True), poolclass=sa.NullPool)
    yield engine
    own_server.start()
    migrations.revert(engine, Queue())


@pytest.fixture
def make(far: sa.Engine, queue: Queue) -> Iterator[Make]:
    queue.job("quick")(lambda payload: None)
    made: list[Worker] = []

    def make_one(engine: sa.Engine | None = None) -> Worker:
        made.append(Worker(engine or far, queue, **SHORT))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for worker in made:
        if not worker.failure:
            worker.stop()


def test_a_worker_that_starts_before_its_database_waits_for_it(
    own_server: Server, far: sa.Engine, queue: Queue, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """B32: with one warning for the outage, and what was enqueued before it saw the database runs."""
    migrations.apply(far, queue)
    own_server.stop()
    worker = make().start()
    own_server.start()
    with far.begin() as conn:
        id_ = queue.enqueue(conn, "quick").id

    def status() -> str:
        with far.connect() as conn:
            job = queue.get(conn, id_)
            assert job is not None
            return job.status

    wait_until(lambda: status() == "completed")
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2, warnings
    assert warnings[0].startswith("database: OperationalError") and "refused" in warnings[0]
    assert warnings[0].endswith("; trying again until it works; correct the URL if it is wrong")
    assert warnings[1].startswith("database: works again after")
    worker.stop()


def test_a_start_that_fails_once_goes_on(own_server: Server, far: sa.Engine, queue: Queue, make: Make) -> None:
    """B27: by a fault of its own; the worker starts all the same."""
    migrations.apply(far, queue)
    own_server.stop()
    worker = make().start()
    parts: Any = worker._parts
    starter = parts._starter
    original, raised = starter._run_once, threading.Event()

    def fail_once() -> float:
        starter._run_once = original
        raised.set()
        raise RuntimeError("a bug")

    starter._run_once = fail_once
    own_server.start()
    wait_until(lambda: raised.is_set() or starter.wake())
    wait_until(lambda: starter.wake() or parts._state == "started")
    assert worker.failure is None
    worker.stop()


def test_a_start_that_fails_for_ever_ends_the_worker(
    own_server: Server, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B27: the error names it."""
    monkeypatch.setattr("sqlane_sa.worker.service.LAST_BACKOFF", 0.01)
    own_server.stop()
    worker = make().start()
    starter: Any = worker._parts._starter  # type: ignore[union-attr]

    def fail() -> float:
        raise RuntimeError("a bug")

    starter._run_once = fail
    wait_until(lambda: worker.failure or starter.wake())
    with pytest.raises(WorkerError, match="the database failed 10 times"):
        worker.stop()


def test_tables_that_are_missing_then_end_the_worker(own_server: Server, far: sa.Engine, make: Make) -> None:
    own_server.stop()
    worker = make().start()
    own_server.start()
    wait_until(lambda: worker.failure)
    with pytest.raises(WorkerError, match="sqlane migrate"):
        worker.stop()


def test_a_worker_that_waits_can_be_stopped(own_server: Server, far: sa.Engine, queue: Queue, make: Make) -> None:
    migrations.apply(far, queue)
    own_server.stop()
    worker = make().start()
    worker.stop()
    own_server.start()
    assert not far.dialect.dispatch.do_connect
    assert worker._parts is None
    worker.start().stop()


def test_what_is_refused_is_no_outage(far: sa.Engine, make: Make) -> None:
    missing = sa.create_engine(far.url.set(database="missing"), poolclass=sa.NullPool)
    with pytest.raises(sa.exc.OperationalError, match='database "missing" does not exist'):
        make(missing).start()


def test_run_until_idle_waits_for_no_database(own_server: Server, far: sa.Engine, make: Make) -> None:
    own_server.stop()
    with pytest.raises(sa.exc.OperationalError, match="refused"):
        make().run_until_idle()


@pytest.mark.parametrize("pool", [sa.StaticPool, sa.pool.SingletonThreadPool, sa.AssertionPool, sa.QueuePool])
def test_a_start_leaves_the_applications_transaction_alone(
    database_url: str, queue: Queue, pool: type[sa.Pool], sql: Any
) -> None:
    """Also where the application's pool has that one connection only."""
    sizes = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1} if pool is sa.QueuePool else {}
    engine = sa.create_engine(database_url, poolclass=pool, **sizes)
    queue.job("any")(lambda payload: None)
    sql("CREATE TABLE notes (note text)")
    with engine.begin() as conn:
        conn.execute(sa.text("INSERT INTO notes VALUES ('before')"))
        with Worker(engine, queue):
            pass
        conn.execute(sa.text("INSERT INTO notes VALUES ('after')"))
    engine.dispose()
    assert sql("SELECT note FROM notes") == [("before",), ("after",)]


def test_a_failure_job_that_was_probably_mistyped(queue: Queue, work: Any, caplog: pytest.LogCaptureFixture) -> None:
    queue.job("mail", failure_job="mail.faild")(lambda payload: None)
    queue.job("mail.failed")(lambda payload: None)
    queue.job("report", failure_job="zzz")(lambda payload: None)
    queue.job("bill", failure_job=queue.define("elsewhere"))(lambda payload: None)
    with caplog.at_level(logging.INFO):
        work()
    said = {record.getMessage(): record.levelname for record in caplog.records}
    declare = "f another process serves it, queue.define it here"
    mail, report = (f"the failure job of {names}, is not defined here" for names in ("mail, mail.faild", "report, zzz"))
    assert said[f"{mail}; did you mean mail.failed? I{declare}"] == "WARNING"
    assert said[f"{report}; i{declare}"] == "WARNING"
    assert said["the failure job of bill, elsewhere, has no handler here; another process has to serve it"] == "INFO"


def test_due_jobs_of_a_name_that_nobody_here_defines(
    queue: Queue, work: Any, engine: sa.Engine, enqueue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A module that was not imported, most likely; said once."""
    elsewhere = Queue()
    elsewhere.define("forgotten")
    elsewhere.define("later")
    with engine.begin() as conn:
        elsewhere.enqueue(conn, "forgotten")
        elsewhere.enqueue(conn, "later", delay=3600)
    queue.define("sent from here")
    queue.job("quick")(lambda payload: None)
    enqueue("sent from here")
    with caplog.at_level(logging.INFO):
        worker = work(poll_interval=0.01)
        wait_until(lambda: "'forgotten' are due" in caplog.text)
        probes = worker._parts.loop._database.committed
        wait_until(lambda: worker._parts.loop._database.committed > probes + 5)
    said = [record.getMessage() for record in caplog.records if "are due" in record.getMessage()]
    assert said == [
        "jobs named 'forgotten' are due, and this worker does not know the name; if no other process serves it, import "
        "the module that defines it, on this very Queue"
    ]
