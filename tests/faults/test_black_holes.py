"""Black holes: the network swallows everything and tells nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue, Worker, store
from sqlane_sa.worker import deadlines, listener
from tests.faults.conftest import StartLoad
from tests.faults.proxy import Proxy
from tests.support import wait_until

LEASE = 2.0
SHORT = {"lease": LEASE, "sweep_interval": 0.2, "stall_delay": 0.1, "shutdown_timeout": 10.0}


@pytest.fixture
def proxy(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The deadline of a call is a second whatever the lease, and a listener pings twice a second."""
    monkeypatch.setattr(deadlines, "SHORTEST", 1.0)
    monkeypatch.setattr(deadlines, "LONGEST", 1.0)
    monkeypatch.setattr(listener, "PING_INTERVAL", 0.5)
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy) -> Iterator[sa.Engine]:
    engine = sa.create_engine(proxy.url)
    yield engine
    engine.dispose()


@pytest.fixture
def job(engine: sa.Engine, queue: Queue) -> Callable[[str], Job]:
    def read(id_: str) -> Job:
        with engine.connect() as conn:
            job = queue.get(conn, id_)
        assert job is not None
        return job

    return read


@pytest.fixture
def enqueue(engine: sa.Engine, queue: Queue) -> Callable[[str], str]:
    def write(name: str) -> str:
        with engine.begin() as conn:
            return queue.enqueue(conn, name).id

    return write


def test_a_start_in_a_black_hole(
    proxy: Proxy, through: sa.Engine, queue: Queue, enqueue: Callable[[str], str], job: Callable[[str], Job]
) -> None:
    """It returns, as without a database, and a stop would be heard; the worker works once the network does."""
    queue.job("quick")(lambda payload: None)
    id_ = enqueue("quick")
    proxy.black_hole()
    with Worker(through, queue, **SHORT) as worker:  # type: ignore[arg-type]
        assert worker._parts is not None and worker._parts._starter is not None, "it found its database"
        proxy.heal()
        wait_until(lambda: job(id_).status == "completed")
    assert not through.dialect.dispatch.do_connect


def test_a_half_open_listener(
    proxy: Proxy, through: sa.Engine, queue: Queue, enqueue: Callable[[str], str], job: Callable[[str], Job]
) -> None:
    """B34: its ping is not answered, it connects anew, and the worker is woken: long before the next poll in 60 s."""
    queue.job("quick")(lambda payload: None)
    with Worker(through, queue, **(SHORT | {"lease": 60.0, "poll_interval": 60.0})) as worker:  # type: ignore[arg-type]
        first = enqueue("quick")
        wait_until(lambda: job(first).status == "completed")
        # It has been tested by now: one that never hears anything is a pooler's, and not tried again.
        wait_until(lambda: worker._parts is not None and worker._parts.loop.ear.file is not None)
        deaf = proxy.find("LISTEN")
        deaf.black_hole()
        meanwhile = enqueue("quick")
        wait_until(lambda: proxy.find("LISTEN") is not deaf, message="a new listener")
        wait_until(lambda: job(meanwhile).status == "completed", message="what was enqueued while nobody listened")
        afterwards = enqueue("quick")
        wait_until(lambda: job(afterwards).status == "completed", message="a wake-up")


def test_a_zombie_worker(
    proxy: Proxy,
    through: sa.Engine,
    engine: sa.Engine,
    queue: Queue,
    enqueue: Callable[[str], str],
    job: Callable[[str], Job],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A19: nothing it writes arrives for three leases: it cancels its handler, reports nothing of it, and resumes."""
    started, cancelled = threading.Event(), threading.Event()

    def handler(payload: Any, ctx: JobContext) -> None:
        if not started.is_set():
            started.set()
            assert ctx.cancelled.wait(60)
            cancelled.set()

    queue.job("long")(handler)
    queue.job("after")(lambda payload: None)
    other = Queue()
    other.job("long")(lambda payload: None)
    with Worker(through, queue, **SHORT, poll_interval=0.1):  # type: ignore[arg-type]
        id_ = enqueue("long")
        assert started.wait(60)
        token = job(id_).lock_token
        proxy.black_hole()
        assert cancelled.wait(60), "the handler was not told"
        wait_until(lambda: expired_leases(engine) >= 2, message="two more leases")
        assert (job(id_).status, job(id_).lock_token) == ("running", token), "something arrived"
        with Worker(engine, other, **SHORT, poll_interval=0.1):  # type: ignore[arg-type]
            wait_until(lambda: job(id_).status == "completed", message="the run of another worker")
        proxy.heal()
        after = enqueue("after")
        wait_until(lambda: job(after).status == "completed", message="work of the worker that was cut off")
    assert (job(id_).stalls, job(id_).attempts) == (1, 1)
    assert "not renewed for a whole lease; its lease is lost" in caplog.text


def test_what_a_worker_does_for_a_handler_ends_too(
    proxy: Proxy, through: sa.Engine, queue: Queue, enqueue: Callable[[str], str], job: Callable[[str], Job]
) -> None:
    """Its `ctx.enqueue`, on a connection that worked before: the handler hears of it, and may end."""
    queue.define("after")
    errors: list[Exception] = []
    enqueued, holed = threading.Event(), threading.Event()

    @queue.job("enqueues")
    def enqueues(payload: Any, ctx: JobContext) -> None:
        ctx.enqueue("after")
        enqueued.set()
        assert holed.wait(60)
        try:
            ctx.enqueue("after")
        except sa.exc.DBAPIError as error:
            errors.append(error)

    with Worker(through, queue, **(SHORT | {"lease": 60.0})):  # type: ignore[arg-type]
        id_ = enqueue("enqueues")
        assert enqueued.wait(60)
        proxy.find("INSERT INTO").black_hole()
        holed.set()
        wait_until(lambda: errors, message="the end of the enqueue")
        wait_until(lambda: job(id_).status == "completed")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_large_payload_that_never_arrives_is_read_again(
    proxy: Proxy,
    through: sa.Engine,
    engine: sa.Engine,
    queue: Queue,
    job: Callable[[str], Job],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """One that the claim does not bring along, on its own connection: its job is released, and runs."""
    sizes: list[int] = []

    async def handler(payload: str) -> None:
        sizes.append(len(payload))

    queue.job("large")(handler if kind == "async def" else lambda payload: sizes.append(len(payload)))
    read, holed = store.read_payload_texts, threading.Event()

    def fall_silent(conn: sa.Connection, *arguments: Any, **options: Any) -> dict[str, str]:
        if not holed.is_set() and not options:
            conn.execute(sa.text("SELECT 1")).close()
            proxy.link_of(conn).black_hole()
            holed.set()
        return read(conn, *arguments, **options)

    monkeypatch.setattr(store, "read_payload_texts", fall_silent)
    with Worker(through, queue, **(SHORT | {"lease": 60.0})):  # type: ignore[arg-type]
        with engine.begin() as conn:
            id_ = queue.enqueue(conn, "large", "x" * 100_000).id
        wait_until(lambda: job(id_).status == "completed")
    assert holed.is_set() and sizes == [100_000]
    assert (job(id_).attempts, job(id_).stalls) == (1, 0)


@pytest.mark.timeout(300)
def test_a_black_hole_under_load(load: StartLoad, database_url: str) -> None:
    """It swallows all that workers, handlers and producer send and are sent, and new connections too, until each loop
    has given up a call. What waits without a deadline of its own is cut when the network is there again."""
    with Proxy(database_url) as proxy:
        under = load(proxy.url, watch_url=database_url)
        proxy.black_hole()
        wait_until(
            lambda: under.check_alive() or all("loop: OperationalError" in log for log in under.logs),
            60,
            "the end of a call of each loop",
        )
        swallowed = proxy.links
        proxy.heal()
        for link in swallowed:
            link.cut()
        under.fault_ended()
        counts = under.finish("black hole", "all connections, until each worker's loop had given up a call")
        under.close()
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the hole"
    assert all("loop: works again" in log for log in under.logs)


def expired_leases(engine: sa.Engine) -> float:
    """For how many leases the oldest running job has not been renewed."""
    with engine.connect() as conn:
        age = "SELECT extract(epoch FROM statement_timestamp() - min(locked_until)) FROM sqlane_jobs"
        return float(conn.exec_driver_sql(f"{age} WHERE status = 'running'").scalar_one()) / LEASE
