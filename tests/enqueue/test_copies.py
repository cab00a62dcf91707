"""A NewJob that `queue.new` did not make as it is (a copy with other facts) is checked like any other."""

import asyncio
import dataclasses
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from sqlane_sa import InvalidJobError, NewJob, PayloadError, Queue, UnknownNameError
from tests.enqueue.business import Order, seen, sql_sent
from tests.support import with_driver

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"payload": "{bad"}, "payload"),
    ({"payload": ""}, "payload"),
    ({"payload": {"a": 1}}, "payload"),
    ({"payload": b"{}"}, "payload"),
    ({"payload": '"\\u0000"'}, "payload"),
    ({"payload": '{"a": "\\ud800"}'}, "payload['a']"),
    ({"payload": "[NaN]"}, "payload[0]"),
    ({"payload": "1e999"}, "payload"),
    ({"payload": "[" * 5000 + "]" * 5000}, "payload"),
    ({"payload": '"' + "x" * 16 * 1024 * 1024 + '"'}, "payload"),
    ({"priority": 10**6}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"delay_ms": 10**18}, "delay_ms"),
    ({"delay_ms": -5}, "delay_ms"),
    ({"delay_ms": math.inf}, "delay_ms"),
    ({"run_at": datetime(2030, 1, 1)}, "run_at"),
    ({"run_at": "2030-01-01"}, "run_at"),
    ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay_ms": 5}, "run_at"),
    ({"mutex_keys": "abc"}, "mutex_keys"),
    ({"mutex_keys": ("a", "")}, "mutex_keys[1]"),
    ({"mutex_keys": 5}, "mutex_keys"),
    ({"id": "\0"}, "id"),
    ({"id": ""}, "id"),
    ({"name": "\ud800"}, "name"),
    ({"name": ["n"]}, "name"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": True}, "max_attempts"),
    ({"max_stalls": -1}, "max_stalls"),
    ({"failure_job": "\0"}, "failure_job"),
    ({"completed_retention_ms": 10**18}, "completed_retention_ms"),
    ({"failed_retention_ms": -1}, "failed_retention_ms"),
]


@pytest.fixture(autouse=True)
def name(queue: Queue) -> None:
    queue.define("n")


def copy(queue: Queue, **facts: Any) -> NewJob:
    return dataclasses.replace(queue.new("n", {"a": 1}), **facts)


def test_what_is_wrong_in_a_copy(engine: sa.Engine, queue: Queue) -> None:
    with Session(engine) as session:
        session.add(Order(number=1))
        for facts, place in WRONG:
            jobs = [queue.new("n"), copy(queue), copy(queue, **facts)]
            with sql_sent(engine) as sent, pytest.raises(InvalidJobError) as caught:
                queue.enqueue_many(session, jobs)
            assert (caught.value.place, sent) == (f"jobs[2].{place}", []), facts
            assert isinstance(caught.value, PayloadError) is place.startswith("payload")
            assert len(str(caught.value)) < 500
        session.commit()
    assert seen(engine) == (1, 0, 0, 0)


def test_an_unknown_name(engine: sa.Engine, queue: Queue) -> None:
    """Of a copy, of another queue's job, and from the caller's own generator."""
    other = Queue()
    other.define("elsewhere")
    ways: list[Any] = [
        [queue.new("n"), copy(queue, name="elsewhere")],
        [queue.new("n"), other.new("elsewhere")],
        (queue.new(name) for name in ("n", "elsewhere")),
    ]
    with engine.connect() as conn, sql_sent(engine) as sent:
        for jobs in ways:
            with pytest.raises(UnknownNameError, match=r"^jobs\[1\]: no job is named 'elsewhere'") as caught:
                queue.enqueue_many(conn, jobs)
            assert (caught.value.place, caught.value.known) == ("jobs[1]", ("n",))
    assert sent == []


def test_a_good_copy(conn: sa.Connection, queue: Queue) -> None:
    """Its keys in their order and once, its time an instant."""
    nepal = timezone(timedelta(hours=5, minutes=45))
    facts = {"mutex_keys": ["b", "a", "a"], "run_at": datetime(2030, 1, 1, tzinfo=nepal), "priority": -3, "id": "x"}
    [one] = queue.enqueue_many(conn, [copy(queue, payload='{"a": 1, "a": [2.5, "é"]}', **facts)])
    found = queue.get(conn, one.id)
    assert found is not None
    assert (found.id, found.mutex_keys, found.priority, found.payload) == ("x", ("a", "b"), -3, {"a": [2.5, "é"]})
    assert found.run_at == facts["run_at"]


def test_one_that_another_key_hides(conn: sa.Connection, queue: Queue) -> None:
    """Python reads it, and the server would not."""
    [one] = queue.enqueue_many(conn, [copy(queue, payload='{"a": NaN, "a": 1}')])
    found = queue.get(conn, one.id)
    assert found and found.payload == {"a": 1}


@pytest.mark.parametrize("jobs", [None, 5, "one"])
def test_what_is_no_iterable_of_jobs(engine: sa.Engine, queue: Queue, database_url: str, jobs: Any) -> None:
    jobs = queue.new("n") if jobs == "one" else jobs

    async def bulk() -> None:
        own = create_async_engine(with_driver(database_url, "asyncpg"))
        try:
            async with own.connect() as conn:
                await queue.aenqueue_many(conn, jobs)
        finally:
            await own.dispose()

    with engine.connect() as conn, sql_sent(engine) as sent:
        for way in (lambda: queue.enqueue_many(conn, jobs), lambda: asyncio.run(bulk())):
            with pytest.raises(InvalidJobError, match=r"^jobs: .* is no list of jobs; give an iterable") as caught:
                way()
            assert (caught.value.place, sent) == ("jobs", [])


@pytest.mark.parametrize("id_", ["\0", "\ud800", "", "x" * 129, None, 5], ids=ascii)
def test_get_of_what_can_be_no_id(conn: sa.Connection, queue: Queue, id_: Any) -> None:
    with pytest.raises(InvalidJobError) as caught:
        queue.get(conn, id_)
    assert caught.value.place == "id"
    assert queue.get(conn, "none") is None
