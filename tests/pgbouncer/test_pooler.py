"""A worker and its producers behind PgBouncer in transaction mode, with four connections for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, Worker
from sqlane_sa.worker.driver import is_pooled, stop_preparing
from tests.pgbouncer.__main__ import TESTS, with_tests
from tests.pgbouncer.pooler import PgBouncer, program
from tests.support import wait_until

pytestmark = [
    pytest.mark.skipif(program() is None, reason="pgbouncer is missing; apt-get install pgbouncer"),
    pytest.mark.timeout(300),
]
OPTIONS: dict[str, Any] = {"poll_interval": 0.1, "lease": 5.0, "stall_delay": 0.0, "sweep_interval": 0.5}
ENDED = sa.text("SELECT status, count(*), sum(stalls) FROM sqlane_jobs GROUP BY status")


@pytest.fixture
def pooler(database_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(database_url) as pooler:
        yield pooler


@pytest.fixture
def queue() -> Queue:
    queue = Queue()

    @queue.job("quick", mutex_keys=lambda p: p["keys"])
    def quick(payload: dict[str, Any]) -> None: ...

    @queue.job("effect", transactional=True)
    def effect(payload: Any, ctx: Any) -> None:
        ctx.connection.execute(sa.text("INSERT INTO effects VALUES (:id)"), {"id": ctx.id})

    return queue


@pytest.mark.parametrize("arguments", [{"prepare_threshold": None}, {}], ids=["unprepared", "prepared"])
def test_no_job_is_lost_behind_it(
    pooler: PgBouncer, database_url: str, engine: sa.Engine, queue: Queue, arguments: dict[str, Any]
) -> None:
    """B30: two workers and 100 enqueues. Without prepare_threshold=None an enqueue may fail, and then it never was."""
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE effects (id text)")
    pooled = sa.create_engine(pooler.url(database_url), connect_args=arguments)
    ids: list[str] = []
    with Worker(pooled, queue, **OPTIONS), Worker(pooled, queue, **OPTIONS):
        for n in range(100):
            try:
                with pooled.begin() as conn:
                    name, payload = ("effect", {}) if n % 4 == 0 else ("quick", {"keys": ["k"] if n % 3 == 0 else None})
                    id_ = queue.enqueue(conn, name, payload).id
            except sa.exc.DBAPIError:
                assert not arguments
                pooled.dispose()
            else:
                ids.append(id_)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            wait_until(lambda: [row.status for row in conn.execute(ENDED)] == ["completed"], 60)
            assert set(conn.scalars(sa.text("SELECT id FROM sqlane_jobs"))) >= set(ids)
            effects = conn.execute(sa.text("SELECT count(*), count(DISTINCT id) FROM effects")).one()
            assert effects[0] == effects[1]
            assert effects[0] == conn.scalar(sa.text("SELECT count(*) FROM sqlane_jobs WHERE job_name = 'effect'"))
            if arguments:
                assert len(ids) == 100
                assert [tuple(row) for row in conn.execute(ENDED)] == [("completed", 100, 0)]
    pooled.dispose()


def test_a_deaf_listener_is_said_once_and_the_worker_polls(
    pooler: PgBouncer, database_url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """B31: LISTEN works there, and nothing arrives; jobs are found by polling."""
    pooled = sa.create_engine(pooler.url(database_url), connect_args={"prepare_threshold": None})

    def warnings() -> list[str]:
        return [record.message for record in caplog.records if "LISTEN" in record.message]

    with caplog.at_level(logging.WARNING, "sqlane_sa"), Worker(pooled, queue, **OPTIONS):
        wait_until(warnings, 60)
        with pooled.begin() as conn:
            id_ = queue.enqueue(conn, "quick", {"keys": None}).id

        def completed() -> bool:
            with pooled.connect() as conn:
                job = queue.get(conn, id_)
            return job is not None and job.status == "completed"

        wait_until(completed, 60)
    assert len(warnings()) == 1
    pooled.dispose()


def test_a_session_of_a_pooler_is_known_by_its_process_id(pooler: PgBouncer, database_url: str) -> None:
    """B30: what a worker finds out about each of its connections; one to the server itself goes on preparing."""
    for url, expected in ((pooler.url(database_url), True), (database_url, False)):
        at = sa.make_url(url)
        with psycopg.connect(host=at.host, port=at.port, user=at.username, dbname=at.database) as conn:
            assert is_pooled(conn) is expected
            stop_preparing(conn)
            assert is_pooled(conn) is None, "whoever prepares nothing may be behind one that it cannot see"


def test_the_worker_prepares_nothing_behind_it(
    pooler: PgBouncer, database_url: str, engine: sa.Engine, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """B30: whatever the application's engine says; and the start says so once."""
    pooled = sa.create_engine(pooler.url(database_url), poolclass=sa.NullPool)
    with caplog.at_level(logging.WARNING, "sqlane_sa"), Worker(pooled, queue, **OPTIONS):
        for _ in range(20):
            with engine.begin() as conn:
                id_ = queue.enqueue(conn, "quick", {"keys": ["k"]}).id

            def completed(id_: str = id_) -> bool:
                with engine.connect() as conn:
                    job = queue.get(conn, id_)
                return job is not None and job.status == "completed"

            wait_until(completed, 60)
    said = [record.message for record in caplog.records]
    assert sum("prepare_threshold" in message for message in said) == 1
    assert not any("prepared statement" in message for message in said), "it tried to run what it had prepared"


@pytest.mark.parametrize(
    ("arguments", "folders"),
    [([], TESTS), (["-n", "0", "-rf"], TESTS), (["tests/store"], []), ([f"{__file__}::test_it", "-x"], [])],
)
def test_options_alone_choose_the_suites_folders(arguments: list[str], folders: list[str]) -> None:
    """Not all that there is: most other folders have servers of their own."""
    assert with_tests(arguments) == [*arguments, *folders]
