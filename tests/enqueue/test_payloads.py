"""The payload is what it was at the time of the call, and comes back equal."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from sqlane_sa import PayloadError, Queue, store
from sqlane_sa.testing import drain
from tests.support import with_driver


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth - 1):
        inner = [inner]
    return inner


VALUES: list[Any] = [
    None,
    {},
    [],
    0,
    "",
    False,
    True,
    -0.0,
    1e308,
    5e-324,
    0.1,
    2**63,
    -(10**400),
    "\U0001f600",
    "é\u2028\u2029\x7f\x01",
    "\\u0000",
    "\\",
    '"quoted"',
    "%s %(a)s :p $1 {0} {jobs}",
    {"": 0, " ": 1, "\\u0000": 2, "\U0001f600": 3, "%s": 4},
    {"b": 1, "a": 2},
    [None, {}, [], 0, "", False],
    nested(200),
    "x" * 1_000_000,
]


def test_every_value_comes_back_equal(any_conn: sa.Connection, queue: Queue) -> None:
    """I101 too: the pair that is a character, and the six characters that only look like one."""
    queue.define("n")
    jobs = queue.enqueue_many(any_conn, [queue.new("n", value) for value in VALUES])
    read = store.read_payloads(any_conn, queue.tables, ids=[job.id for job in jobs])
    for job, value in zip(jobs, VALUES, strict=True):
        back = read[job.id]
        assert (type(back), repr(back)) == (type(value), repr(value))


def test_the_handler_gets_it_equal(conn: sa.Connection, queue: Queue) -> None:
    got: list[Any] = []
    handle = queue.job("n")(got.append)
    for value in VALUES:
        handle.enqueue(conn, value)
    drain(conn, queue)
    assert [repr(value) for value in got] == [repr(value) for value in VALUES]


def test_what_json_has_no_word_for(conn: sa.Connection, queue: Queue) -> None:
    """Only these change, and into what the docs say: tuples become lists."""
    queue.define("n")
    job = queue.get(conn, queue.enqueue(conn, "n", {"pair": (1, (2,))}).id)
    assert job is not None
    assert job.payload == {"pair": [1, [2]]}


def test_a_later_change_changes_nothing(conn: sa.Connection, queue: Queue) -> None:
    queue.define("n")
    payload = {"items": [1]}
    job = queue.enqueue(conn, "n", payload)
    later = queue.new("n", payload)
    payload["items"].append(2)
    [second] = queue.enqueue_many(conn, [later])
    read = store.read_payloads(conn, queue.tables, ids=[job.id, second.id])
    assert list(read.values()) == [{"items": [1]}] * 2


def test_a_change_before_aenqueue_is_awaited(database_url: str, queue: Queue) -> None:
    """As for any coroutine: the call happens when it is awaited."""

    async def work() -> Any:
        own = create_async_engine(with_driver(database_url, "asyncpg"))
        async with AsyncSession(own) as session:
            payload = {"n": 1}
            task = queue.aenqueue(session, "n", payload)
            payload["n"] = 2
            job = await task
            payload["n"] = 3
            found = await session.run_sync(lambda inner: queue.get(inner.connection(), job.id))
        await own.dispose()
        return found and found.payload

    queue.define("n")
    assert asyncio.run(work()) == {"n": 2}


def test_mutex_keys_are_made_of_the_payload_at_the_call(conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", mutex_keys=lambda payload: [f"user:{payload['user']}"])
    payload = {"user": 1}
    job = queue.enqueue(conn, "n", payload)
    payload["user"] = 2
    found = queue.get(conn, job.id)
    assert found is not None
    assert found.mutex_keys == ("user:1",)


@pytest.mark.parametrize("depth", [201, 5000])
def test_nested_too_deep(conn: sa.Connection, queue: Queue, depth: int) -> None:
    queue.define("n")
    with pytest.raises(PayloadError, match="nested deeper than 200"):
        queue.enqueue(conn, "n", nested(depth))
    assert queue.enqueue(conn, "n", nested(200)).created
