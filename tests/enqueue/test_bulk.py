"""Any number of jobs in one call: in input order, all of them or none."""

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import InvalidJobError, NewJob, Queue
from tests.enqueue.business import Order, seen, sql_sent
from tests.support import with_driver


@pytest.fixture(autouse=True)
def name(queue: Queue) -> None:
    queue.define("n")


def numbered(queue: Queue, n: int, **odd: Any) -> Iterator[NewJob]:
    """Jobs with their number as payload; `jobs_400=...` is another payload in its place."""
    for i in range(n):
        yield queue.new("n", odd.get(f"jobs_{i}", i))


BY_NUMBER = "SELECT id FROM sqlane_payloads ORDER BY CAST(CAST(payload AS text) AS integer)"
BY_ORDER = "SELECT id FROM sqlane_jobs ORDER BY run_at, id"


@pytest.mark.parametrize("n", [1, 5000, 20_000, 100_000])
def test_any_number(engine: sa.Engine, queue: Queue, n: int) -> None:
    """I108: past every limit on parameters, from a generator."""
    with Session(engine) as session:
        session.add(Order(number=1))
        results = queue.enqueue_many(session, numbered(queue, n))
        ids = [one.id for one in results]
        assert all(one.created for one in results)
        assert list(session.scalars(sa.text(BY_NUMBER))) == ids, "results in input order"
        assert list(session.scalars(sa.text(BY_ORDER))) == ids, "run in input order"
        session.commit()
    assert seen(engine) == (1, n, n, 0)


def test_all_or_nothing(engine: sa.Engine, queue: Queue) -> None:
    """Chunks are parts of one transaction, and it is the caller's."""
    with engine.connect() as conn:
        queue.enqueue_many(conn, numbered(queue, 5000))
        conn.rollback()
    assert seen(engine) == (0, 0, 0, 0)


@pytest.mark.parametrize("n", [401, 20_000])
@pytest.mark.parametrize(("bad", "place"), [({"a": datetime(2030, 1, 1, tzinfo=UTC)}, "['a']"), ("\0", ""), ({1}, "")])
def test_one_that_cannot_be_stored(engine: sa.Engine, queue: Queue, n: int, bad: Any, place: str) -> None:
    """I104: the error names the element, nothing was sent, and the session commits its own."""
    with Session(engine) as session:
        session.add(Order(number=1))
        with sql_sent(engine) as sent, pytest.raises(InvalidJobError) as caught:
            queue.enqueue_many(session, numbered(queue, n, jobs_400=bad))
        assert caught.value.place == f"jobs[400].payload{place}"
        assert sent == []
        session.commit()
    assert seen(engine) == (1, 0, 0, 0)


@pytest.mark.parametrize("bad", [None, "n", {"name": "n"}, ("n", 1)])
def test_one_that_is_no_job(engine: sa.Engine, queue: Queue, bad: Any) -> None:
    jobs = [*numbered(queue, 4500), bad, *numbered(queue, 10)]
    with engine.connect() as conn, sql_sent(engine) as sent:
        with pytest.raises(InvalidJobError, match=rf"jobs\[4500\]: {re.escape(repr(bad))} is no NewJob; make it"):
            queue.enqueue_many(conn, jobs)
        assert sent == []


def test_an_error_of_the_callers_generator(engine: sa.Engine, queue: Queue) -> None:
    def broken() -> Iterator[NewJob]:
        yield from numbered(queue, 4500)
        raise KeyError("theirs")

    with engine.connect() as conn, sql_sent(engine) as sent:
        with pytest.raises(KeyError, match="theirs"):
            queue.enqueue_many(conn, broken())
        assert sent == []


def test_the_server_refuses_a_later_chunk(engine: sa.Engine, queue: Queue) -> None:
    """Its savepoint takes the earlier chunks back as well."""
    with engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE sqlane_payloads ADD CHECK (CAST(payload AS text) <> '4999')")
    with Session(engine) as session:
        session.add(Order(number=1))
        with pytest.raises(sa.exc.IntegrityError):
            with session.begin_nested():
                queue.enqueue_many(session, numbered(queue, 5000))
        session.commit()
    assert seen(engine) == (1, 0, 0, 0)


def test_on_an_async_session(database_url: str, engine: sa.Engine, queue: Queue) -> None:
    async def work() -> None:
        own = create_async_engine(with_driver(database_url, "asyncpg"))
        async with AsyncSession(own) as session:
            session.add(Order(number=1))
            with pytest.raises(InvalidJobError, match=r"^jobs\[400\]\.payload: "):
                await queue.aenqueue_many(session, numbered(queue, 500, jobs_400={1}))
            results = await queue.aenqueue_many(session, numbered(queue, 5000))
            assert list(await session.scalars(sa.text(BY_NUMBER))) == [one.id for one in results]
            await session.commit()
        await own.dispose()

    asyncio.run(work())
    assert seen(engine) == (1, 5000, 5000, 0)


def test_jobs_of_many_names_and_options(conn: sa.Connection, queue: Queue) -> None:
    queue.define("keyed", mutex_keys=lambda payload: [f"user:{payload}"], priority=-1, max_attempts=2)
    jobs = [queue.new("n", 1, delay=60), queue.new("keyed", 2), queue.new("keyed", 3, mutex_keys=[], priority=4)]
    found = [queue.get(conn, one.id) for one in queue.enqueue_many(conn, jobs)]
    facts = [(job.name, job.payload, job.mutex_keys, job.priority, job.max_attempts) for job in found if job]
    assert facts == [("n", 1, None, 0, 5), ("keyed", 2, ("user:2",), -1, 2), ("keyed", 3, None, 4, 2)]


def test_a_job_may_be_enqueued_again(conn: sa.Connection, queue: Queue) -> None:
    """A NewJob is a value: each enqueue makes a job of it."""
    one = queue.new("n", "again")
    first, second = queue.enqueue_many(conn, [one, one])
    assert first.id != second.id
    assert [job and job.payload for job in (queue.get(conn, first.id), queue.get(conn, second.id))] == ["again"] * 2


@pytest.mark.parametrize(
    "options",
    [{}, {"mutex_keys": ["a", "b"]}, {"delay": 5, "priority": 1}, {"run_at": datetime(2030, 1, 1, tzinfo=UTC)}],
)
def test_one_job_is_one_statement_of_plain_values(engine: sa.Engine, queue: Queue, options: dict[str, Any]) -> None:
    """No array of one, and the SQL is compiled once: a job one by one is what most applications enqueue."""
    sent: list[Any] = []
    compiled: list[str] = []
    with engine.connect() as conn:
        queue.enqueue(conn, "n", 0, **options)
        sa.event.listen(
            engine, "before_cursor_execute", lambda conn, cursor, sql, values, *_: sent.append((sql, values))
        )
        sa.event.listen(engine, "before_execute", lambda *_: compiled.append("compiled"))
        for i in range(3):
            queue.enqueue(conn, "n", i, **options)
    assert len(sent) == 3 and not compiled
    assert len({id(sql) for sql, _ in sent}) == 1, "the same string"
    keys = {values.pop("mutex_keys", None) for _, values in sent}
    assert keys == ({'{"a","b"}'} if "mutex_keys" in options else {None})
    assert not any(str(value).startswith("{") for _, values in sent for value in values.values())


def test_jobs_that_differ_in_their_payloads_alone_send_no_more_than_those(engine: sa.Engine, queue: Queue) -> None:
    sizes: list[int] = []
    queue.define("long." + "x" * 200)
    with engine.connect() as conn:
        sa.event.listen(
            engine, "before_cursor_execute", lambda conn, cursor, sql, values, *_: sizes.append(len(str(values)))
        )
        alike = [queue.new("long." + "x" * 200, i) for i in range(2000)]
        queue.enqueue_many(conn, alike)
        queue.enqueue_many(conn, [*alike[1:], queue.new("n")])
        found = conn.execute(sa.text("SELECT count(*), min(max_attempts), max(max_stalls) FROM sqlane_jobs")).one()
    assert sizes[0] < 2000 * 40 < 2000 * 200 < sizes[1]
    assert tuple(found) == (4000, 5, 3)
