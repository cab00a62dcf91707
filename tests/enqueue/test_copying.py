"""enqueue_many(copy=True): the same rows by COPY, in the caller's transaction, where the driver is psycopg."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import HandleError, InvalidJobError, NewJob, PayloadError, Queue, migrations, store
from tests.enqueue.business import Order, seen, sql_sent
from tests.support import PARAMETER_LIKE, with_driver
from tests.wakeups import Heard

ODD = [
    '"',
    "{}",
    "NULL",
    "null",
    "a,b",
    " ",
    "%s",
    "%(a)s",
    ":p",
    "$1",
    "é",
    "\U0001f600",
    "'",
    "\\N",
    "\\.",
    "\\",
    "\\\\N",
    "\t",
    "\r\n",
    "\x01\x7f\x85\u2028",
    "a\\tb\tc",
    "\\x41",
]
MOMENT = datetime(2031, 2, 3, 4, 5, 6, 789_999, tzinfo=UTC)

ROWS = sa.text(
    "SELECT j.*, p.payload, (SELECT array_agg(w.mutex_key ORDER BY w.mutex_key) FROM sqlane_waits AS w"
    " WHERE w.job_id = j.id AND w.run_at = j.run_at) AS lines"
    " FROM sqlane_jobs AS j JOIN sqlane_payloads AS p USING (id) ORDER BY id"
)


@pytest.fixture(autouse=True)
def names(queue: Queue) -> None:
    queue.define("n")
    queue.define("other", priority=-3, max_attempts=7, max_stalls=0, failure_job="n", completed_retention=None)


def odd_jobs(queue: Queue) -> Iterator[NewJob]:
    for text in ODD:
        if text not in queue.definitions:
            queue.define(text, failure_job="\\N\t")
        yield queue.new(text, {text: [text, 1.5, None]}, mutex_keys=[text, "z"])
        yield queue.new("n", text)
    yield queue.new("other", None, run_at=MOMENT, mutex_keys=["k"])
    yield queue.new("other", delay=timedelta(hours=1, microseconds=1))
    yield queue.new("n", run_at=datetime(1970, 1, 1, tzinfo=UTC))
    yield queue.new("n", run_at=datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))


def test_the_rows_are_those_of_an_insert(conn: sa.Connection, queue: Queue) -> None:
    def rows() -> list[dict[str, Any]]:
        found = [dict(row) for row in conn.execute(ROWS).mappings()]
        for row in found:
            assert row.pop("updated_at") == row["created_at"]
            soon = row["run_at"] - row.pop("created_at")
            if timedelta(seconds=-5) < soon < timedelta(hours=2):  # by the clock
                row["run_at"] = round(soon.total_seconds() / 10)
            del row["id"]
        return found

    jobs = list(odd_jobs(queue))
    queue.enqueue_many(conn, jobs)
    inserted = rows()
    conn.execute(sa.text("TRUNCATE sqlane_jobs, sqlane_payloads, sqlane_waits"))
    copied = queue.enqueue_many(conn, jobs, copy=True)
    assert rows() == inserted
    assert [one.id for one in copied] == sorted({one.id for one in copied})
    found = [queue.get(conn, one.id) for one in copied[: 2 * len(ODD)]]
    assert [job and job.payload for job in found] == [
        payload for text in ODD for payload in ({text: [text, 1.5, None]}, text)
    ]


@pytest.mark.parametrize("n", [0, 1, 20_000])
def test_any_number(engine: sa.Engine, queue: Queue, n: int) -> None:
    with Session(engine) as session:
        session.add(Order(number=1))
        results = queue.enqueue_many(session, (queue.new("n", i) for i in range(n)), copy=True)
        assert all(one.created for one in results)
        assert list(session.scalars(sa.text("SELECT id FROM sqlane_jobs ORDER BY run_at, id"))) == [
            one.id for one in results
        ]
        session.commit()
    assert seen(engine) == (1, n, n, 0)


def test_a_rollback_takes_everything_back(engine: sa.Engine, queue: Queue) -> None:
    with engine.connect() as conn:
        queue.enqueue_many(conn, [queue.new("n", mutex_keys=["k"])] * 3, copy=True)
        conn.rollback()
    assert seen(engine) == (0, 0, 0, 0)


def test_they_are_due_at_once(conn: sa.Connection, queue: Queue) -> None:
    for _ in range(10):
        ids = [one.id for one in queue.enqueue_many(conn, [queue.new("n")] * 2, copy=True)]
        assert store.find_candidates(conn, queue.tables, limits_by_name={"n": 100})[-2:] == ids


@pytest.mark.usefixtures("asleep")
def test_sleepers_are_woken_once(engine: sa.Engine, queue: Queue, heard: Heard) -> None:
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("n")] * 5000, copy=True)
        assert heard() == 0
    assert heard() == 1


def test_an_async_engine(database_url: str, engine: sa.Engine, queue: Queue) -> None:
    async def work() -> None:
        own = create_async_engine(with_driver(database_url, "psycopg"))
        async with AsyncSession(own) as session:
            results = await queue.aenqueue_many(session, (queue.new("n", i) for i in range(3000)), copy=True)
            assert len(results) == 3000
            await session.commit()
        await own.dispose()

    asyncio.run(work())
    assert seen(engine) == (0, 3000, 3000, 0)


@pytest.mark.parametrize("driver", ["psycopg2", "pg8000"])
def test_other_drivers_are_refused(database_url: str, engine: sa.Engine, queue: Queue, driver: str) -> None:
    own = sa.create_engine(with_driver(database_url, driver))
    with own.connect() as conn, sql_sent(own) as sent:
        with pytest.raises(HandleError, match=rf"needs the driver psycopg, .* uses {driver}; use an engine for"):
            queue.enqueue_many(conn, [queue.new("n")], copy=True)
        assert sent == []
        queue.enqueue_many(conn, [queue.new("n")])
        conn.commit()
    own.dispose()
    assert seen(engine) == (0, 1, 1, 0)


def test_asyncpg_is_refused(database_url: str, queue: Queue) -> None:
    async def work() -> None:
        own = create_async_engine(with_driver(database_url, "asyncpg"))
        async with own.connect() as conn:
            with pytest.raises(HandleError, match="uses asyncpg"):
                await queue.aenqueue_many(conn, [queue.new("n")], copy=True)
        await own.dispose()

    asyncio.run(work())


def test_given_ids_and_bad_jobs_are_refused(engine: sa.Engine, queue: Queue) -> None:
    with engine.connect() as conn, sql_sent(engine) as sent:
        with pytest.raises(InvalidJobError, match=r"^jobs\[1\]\.id: is given, .* leave out copy=True") as caught:
            queue.enqueue_many(conn, [queue.new("n"), queue.new("n", id="one")], copy=True)
        assert (caught.value.place, caught.value.value) == ("jobs[1].id", "one")
        with pytest.raises(PayloadError, match=r"^jobs\[400\]\.payload: "):
            queue.enqueue_many(conn, (queue.new("n", {1} if i == 400 else i) for i in range(500)), copy=True)
        assert sent == []
    assert seen(engine) == (0, 0, 0, 0)


def test_a_role_that_may_only_insert(conn: sa.Connection, queue: Queue) -> None:
    conn.execute(sa.text("CREATE ROLE sqlane_importer"))
    conn.execute(sa.text("GRANT SELECT ON sqlane_sleepers TO sqlane_importer"))
    conn.execute(sa.text("SET LOCAL ROLE sqlane_importer"))
    with conn.begin_nested() as savepoint:
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied for table sqlane_jobs"):
            queue.enqueue_many(conn, [queue.new("n")], copy=True)
        savepoint.rollback()
    conn.execute(sa.text("RESET ROLE"))
    conn.execute(sa.text("GRANT INSERT ON sqlane_jobs, sqlane_payloads, sqlane_waits TO sqlane_importer"))
    conn.execute(sa.text("SET LOCAL ROLE sqlane_importer"))
    assert len(queue.enqueue_many(conn, [queue.new("n", mutex_keys=["k"])], copy=True)) == 1


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_async"])
@pytest.mark.parametrize("prefix", ["a%s:b {waits} ", f'"{PARAMETER_LIKE}'])
def test_odd_names_of_tables(database_url: str, engine: sa.Engine, prefix: str, driver: str) -> None:
    queue = Queue(prefix)
    queue.define("n", mutex_keys=["k"])
    migrations.apply(engine, queue)

    def copy(conn: sa.Connection) -> int:
        queue.enqueue_many(conn, [queue.new("n")] * 3, copy=True)
        queue.enqueue(conn, "n")
        queue.enqueue(conn, "n", mutex_keys=[])
        return queue.stats(conn)["n"].pending

    async def copy_async() -> int:
        own = create_async_engine(with_driver(database_url, driver))
        async with own.connect() as conn:
            pending = await conn.run_sync(copy)
        await own.dispose()
        return pending

    if driver == "psycopg":
        with engine.connect() as conn:
            assert copy(conn) == 5
    else:
        assert asyncio.run(copy_async()) == 5
