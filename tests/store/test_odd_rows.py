"""A row that somebody changed by hand is claimed like any other, and hides none: not from claims, not from figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.steps import add, candidates, claim, holds, ids_of, lines, new, rows, run, running, status

PAST = ["-infinity", "0044-03-15 BC", "0001-01-01 UTC"]
FUTURE = ["infinity", "20000-01-01", "9999-12-31 23:59:59 UTC"]


def change(conn: sa.Connection, id: str, column: str, value: str) -> None:
    run(conn, f"UPDATE sqlane_jobs SET {column} = '{value}' WHERE id = :id", id=id)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu"])
@pytest.mark.parametrize("value", PAST)
@pytest.mark.parametrize("keys", [None, ["a"]], ids=["plain", "keyed"])
def test_due_since_ever(any_conn: sa.Connection, queue: Queue, value: str, zone: str, keys: list[str] | None) -> None:
    run(any_conn, f"SET LOCAL TimeZone = '{zone}'")
    odd, good = add(any_conn, queue, mutex_keys=keys), add(any_conn, queue, mutex_keys=keys and ["b"])
    for column in ("run_at", "created_at"):
        change(any_conn, odd, column, value)
    ((name, delay_ms),) = store.probe(any_conn, queue.tables)
    assert (name, delay_ms < -(10**12)) == ("n", True)
    assert store.stats(any_conn, queue.tables)["n"].due == 2
    assert candidates(any_conn, queue) == [odd, good]
    jobs = claim(any_conn, queue, odd, good)
    assert ids_of(jobs) == [odd, good]
    assert jobs[0].waited_ms > 10**12
    again = store.get(any_conn, queue.tables, id=odd)
    assert again is not None and str(again.run_at) < "0003"  # of pg8000, a text


@pytest.mark.parametrize("value", PAST)
def test_due_since_ever_claimed_in_one_statement(any_conn: sa.Connection, queue: Queue, value: str) -> None:
    odd, good = add(any_conn, queue), add(any_conn, queue)
    change(any_conn, odd, "run_at", value)
    change(any_conn, good, "created_at", value)
    jobs = store.claim_plain(any_conn, queue.tables, lanes=[("n", 0, 5)], lock_token="t", locked_by="w", lease=60)
    assert ids_of(jobs) == [odd, good]


@pytest.mark.parametrize("value", FUTURE)
@pytest.mark.parametrize("keys", [None, ["a"]], ids=["plain", "keyed"])
def test_never_due(any_conn: sa.Connection, queue: Queue, value: str, keys: list[str] | None) -> None:
    odd, good = add(any_conn, queue, mutex_keys=keys), add(any_conn, queue, "other")
    change(any_conn, odd, "run_at", value)
    delays = dict(store.probe(any_conn, queue.tables))
    assert delays["n"] > 10**12 and delays["other"] <= 0
    assert store.stats(any_conn, queue.tables)["n"].due == 0
    assert candidates(any_conn, queue) == [good]
    found = store.get(any_conn, queue.tables, id=odd)
    assert found is not None and found.run_at.year == 9999
    assert store.make_due(any_conn, queue.tables, names=["n"]) == 1
    assert sorted(candidates(any_conn, queue)) == sorted([odd, good])


def test_a_linger_without_end(any_conn: sa.Connection, queue: Queue) -> None:
    run(
        any_conn,
        "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token, held_until) VALUES ('a', 'x', 'x', 'infinity')",
    )
    delay_ms = store.next_linger_end(any_conn, queue.tables)
    assert delay_ms is not None and delay_ms > 10**12


@pytest.mark.parametrize(
    ("stored", "keys"),
    [
        ("{NULL}", []),
        ("{}", []),
        ("{NULL,b}", ["b"]),
        ("{b,b}", ["b"]),
        ("{{b,c},{d,NULL}}", ["b", "c", "d"]),
    ],
)
def test_keys_that_no_enqueue_writes(any_conn: sa.Connection, queue: Queue, stored: str, keys: list[str]) -> None:
    odd, good = add(any_conn, queue, mutex_keys=["old"]), add(any_conn, queue, mutex_keys=["good"])
    run(any_conn, "DELETE FROM sqlane_waits")
    change(any_conn, odd, "mutex_keys", stored)
    assert candidates(any_conn, queue) == [odd, good]
    jobs = claim(any_conn, queue, odd, good)
    assert [job.mutex_keys for job in jobs] == [keys or None, ["good"]]
    assert holds(any_conn) == dict.fromkeys(keys, (odd, False)) | {"good": (good, False)}
    assert store.retry(any_conn, queue.tables, job=jobs[0])
    assert lines(any_conn) == [(key, odd) for key in keys]
    assert holds(any_conn) == {"good": (good, False)}
    found = store.get(any_conn, queue.tables, id=odd)
    assert found is not None and found.mutex_keys == (tuple(keys) or None)
    change(any_conn, odd, "run_at", "tomorrow")
    assert store.make_due(any_conn, queue.tables, names=["n"]) == 1
    job = claim(any_conn, queue, odd, token="token-2")[0]
    assert store.complete(any_conn, queue.tables, jobs=[job]) == [odd]
    assert status(any_conn, odd) == "completed"


def test_keys_are_stored_once(any_conn: sa.Connection, queue: Queue) -> None:
    job = replace(new(queue, mutex_keys=["b"]), mutex_keys=("b", "a", "b"))
    (enqueued,) = store.insert_jobs(any_conn, queue.tables, jobs=[job])
    assert rows(any_conn, "SELECT mutex_keys FROM sqlane_jobs") == [["b", "a"]]
    assert lines(any_conn) == [("a", enqueued.id), ("b", enqueued.id)]


@pytest.mark.parametrize("column", ["locked_until", "started_at", "finished_at", "expires_at", "updated_at"])
@pytest.mark.parametrize("value", [PAST[0], FUTURE[0]])
def test_any_time_can_be_read(any_conn: sa.Connection, queue: Queue, column: str, value: str) -> None:
    job = running(any_conn, queue)
    change(any_conn, job.id, column, value)
    found = store.get(any_conn, queue.tables, id=job.id)
    assert found is not None and getattr(found, column).year in (1, 9999)
    assert found.timed_out_at is None
