"""A database whose time zone is not UTC, or has a name that no driver knows: the same instants everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sqlane_sa import Job, Queue, Retry
from sqlane_sa.worker.context import JobContext
from tests.drivers import DRIVERS
from tests.support import with_driver

ZONES = ["Asia/Kathmandu", "+05:45", "<+0545>-05:45"]
MOMENT = datetime(2199, 12, 31, 23, 59, 59, 250_000, tzinfo=UTC)
MOMENTS = ("run_at", "created_at", "updated_at", "started_at", "finished_at", "expires_at", "locked_until")


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The zone of every connection that is made from now on."""
    monkeypatch.delenv("PGTZ", raising=False)
    with engine.begin() as conn:
        name = conn.dialect.identifier_preparer.quote(str(engine.url.database))
        conn.exec_driver_sql(f"ALTER DATABASE {name} SET timezone = '{request.param}'")
    engine.dispose()
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SHOW timezone").scalar() == request.param
    return str(request.param)


def seconds(conn: sa.Connection, id: str) -> dict[str, float | None]:
    """What the database has, as seconds of the epoch, which no zone can change on the way."""
    columns = ", ".join(f"CAST(extract(epoch FROM {name}) AS double precision) AS {name}" for name in MOMENTS)
    row = conn.execute(sa.text(f"SELECT {columns} FROM sqlane_jobs WHERE id = :id"), {"id": id}).one()
    return dict(row._mapping)


def read(job: Job | None) -> dict[str, float | None]:
    assert job is not None
    moments = {name: getattr(job, name) for name in MOMENTS}
    return {name: None if at is None else at.timestamp() for name, at in moments.items()}


def enqueue_and_look(conn: sa.Connection) -> None:
    """With a moment, with one of another offset, with a delay and now; as many as are due are due in the figures."""
    queue = Queue()
    handle = queue.define("n")
    local = MOMENT.astimezone(datetime.fromisoformat("2000-01-01T00:00:00-09:30").tzinfo)
    jobs = [handle.new(run_at=MOMENT), handle.new(run_at=local), handle.new(delay=3600), handle.new()]
    first, second, delayed, now = (one.id for one in queue.enqueue_many(conn, jobs))
    for id in (first, second, delayed, now):
        assert read(queue.get(conn, id)) == pytest.approx(seconds(conn, id), abs=1e-5)
    assert seconds(conn, first)["run_at"] == seconds(conn, second)["run_at"] == MOMENT.timestamp()
    found = seconds(conn, delayed)
    assert found["run_at"] == pytest.approx((found["created_at"] or 0) + 3600, abs=0.002)
    stats = queue.stats(conn)["n"]
    assert (stats.pending, stats.due) == (4, 1)
    assert stats.oldest_due_ms is not None and 0 <= stats.oldest_due_ms < 3_600_000


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("driver", DRIVERS)
def test_enqueue_and_stats(database_url: str, driver: str) -> None:
    url = with_driver(database_url, driver)
    if driver != "asyncpg":
        with sa.create_engine(url, poolclass=sa.NullPool).begin() as conn:
            enqueue_and_look(conn)
        return

    async def main() -> None:
        async with create_async_engine(url, poolclass=sa.NullPool).begin() as conn:
            await conn.run_sync(enqueue_and_look)

    asyncio.run(main())


@pytest.mark.usefixtures("zone")
def test_a_worker(engine: sa.Engine, queue: Queue, run: Callable[..., None]) -> None:
    @queue.job("n", mutex_keys=lambda payload: ["k"])
    def handler(payload: object, ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise Retry(delay=timedelta(0))

    with engine.begin() as conn:
        due, later = (one.id for one in queue.enqueue_many(conn, [handler.new(), handler.new(run_at=MOMENT)]))
    run()
    with engine.connect() as conn:
        job = queue.get(conn, due)
        assert job is not None and (job.status, job.attempts) == ("completed", 2)
        assert read(job) == pytest.approx(seconds(conn, due), abs=1e-5)
        assert job.created_at <= job.run_at <= job.started_at <= job.finished_at  # type: ignore[operator]
        assert seconds(conn, later)["run_at"] == MOMENT.timestamp()
        assert queue.stats(conn)["n"].pending == 1
