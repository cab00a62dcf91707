"""The walk over the lines: no key starves behind another, and rows that were left over block nobody."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store.candidates import HEADS
from tests.store.steps import add, add_many, candidates, claim, lines, new, rows, run, running


def hold(conn: sa.Connection, key: str) -> None:
    run(conn, "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES (:key, 'x', 'x')", key=key)


def test_past_a_window_full_of_one_held_key(any_conn: sa.Connection, queue: Queue) -> None:
    hold(any_conn, "a")
    add_many(any_conn, queue, 5, mutex_keys=["a"])
    heads = [add(any_conn, queue, mutex_keys=[key]) for key in ("b", "c", "d")]
    add(any_conn, queue, mutex_keys=["b"])
    for window in (1, 5, 6, 100):
        assert candidates(any_conn, queue, window=window) == heads
        assert candidates(any_conn, queue, window=window, limit=2) == heads[:2]


def test_past_a_hundred_thousand_jobs_of_one_held_key(conn: sa.Connection, queue: Queue) -> None:
    hold(conn, "a")
    fill = """
        WITH new_jobs AS (
            INSERT INTO sqlane_jobs (id, job_name, mutex_keys, run_at, priority)
            SELECT :prefix || lpad(CAST(i AS text), 6, '0'), 'n', ARRAY[CAST(CASE WHEN :keys = 1 THEN 'a'
                ELSE 'key-' || i % :keys END AS text)],
                date_trunc('milliseconds', statement_timestamp() - CAST(:ago AS interval)), 0
            FROM generate_series(1, CAST(:n AS integer)) AS i RETURNING id, run_at, mutex_keys)
        INSERT INTO sqlane_waits SELECT mutex_keys[1], run_at, id FROM new_jobs"""
    new(queue)
    run(conn, fill, prefix="blocked-", keys=1, ago="2 hours", n=100_000)
    run(conn, fill, prefix="free-", keys=500, ago="1 hour", n=1_000)
    store.pin_plans(conn)
    ids = candidates(conn, queue, limit=1000)
    assert len(ids) == 500
    assert ids == rows(conn, "SELECT id FROM sqlane_jobs WHERE id LIKE 'free-%' ORDER BY id LIMIT 500")
    started = claim(conn, queue, *ids)
    store.complete(conn, queue.tables, jobs=started)
    assert len(candidates(conn, queue, limit=10)) == 10


def test_high_priority_behind_one_key_starves_nobody(conn: sa.Connection, queue: Queue) -> None:
    running(conn, queue, mutex_keys=["a"], priority=-10)
    queued = add_many(conn, queue, 1000, mutex_keys=["a"], priority=-10)
    others = [add(conn, queue, mutex_keys=[key], priority=10) for key in "bcdefghijklmnopqrstuvwxyz"]
    started: list[str] = []
    while ids := candidates(conn, queue, limit=10):
        started += [job.id for job in claim(conn, queue, *ids)]
    assert started == others
    assert claim(conn, queue, queued[0]) == [], "the held key"


def test_a_better_priority_past_its_window_is_not_hidden_by_a_worse_one(any_conn: sa.Connection, queue: Queue) -> None:
    hold(any_conn, "a")
    add_many(any_conn, queue, 4, mutex_keys=["a"], priority=0)
    urgent = add(any_conn, queue, mutex_keys=["b"], priority=0)
    patient = [add(any_conn, queue, mutex_keys=[f"c{i}"], priority=9) for i in range(4)]
    assert candidates(any_conn, queue, window=3, limit=2) == [urgent, patient[0]]


def test_a_full_window_with_enough_that_can_start_is_enough(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, mutex_keys=[f"k{i}"]) for i in range(6)]
    assert candidates(any_conn, queue, window=3, limit=3) == ids[:3]


def test_the_walk_goes_on_after_many_keys_that_cannot_start(conn: sa.Connection, queue: Queue) -> None:
    n = HEADS + 10
    for i in range(3):
        hold(conn, f"held-{i}")
    blocked = [new(queue, mutex_keys=[f"held-{i % 3}", f"a{i:06}"]) for i in range(n)]
    store.insert_jobs(conn, queue.tables, jobs=blocked)
    id = add(conn, queue, mutex_keys=["z"])
    assert candidates(conn, queue, window=10) == [id]
    assert candidates(conn, queue, window=10, after_key="y") == [id]
    assert candidates(conn, queue, window=10, after_key="zz") == [id], "from the start, when it reached the end"


def test_after_key_gives_each_key_its_turn(any_conn: sa.Connection, queue: Queue) -> None:
    hold(any_conn, "a")
    add_many(any_conn, queue, 3, mutex_keys=["a"])
    first, second = (add(any_conn, queue, mutex_keys=[key]) for key in ("b", "c"))
    assert candidates(any_conn, queue, window=2) == [first, second]
    assert candidates(any_conn, queue, window=2, after_key="b") == [second]


def test_the_walk_skips_what_is_not_due(any_conn: sa.Connection, queue: Queue) -> None:
    hold(any_conn, "a")
    add_many(any_conn, queue, 3, mutex_keys=["a"])
    add(any_conn, queue, mutex_keys=["b"], delay=60)
    due = add(any_conn, queue, mutex_keys=["b"])
    assert candidates(any_conn, queue, window=2) == [due]


def test_the_walk_keeps_to_the_names_asked_for(any_conn: sa.Connection, queue: Queue) -> None:
    hold(any_conn, "a")
    add_many(any_conn, queue, 3, "here", mutex_keys=["a"])
    add(any_conn, queue, "elsewhere", mutex_keys=["b"])
    add(any_conn, queue, "here", mutex_keys=["b"])
    id = add(any_conn, queue, "here", mutex_keys=["c"])
    assert candidates(any_conn, queue, limits_by_name={"here": 9}, window=2) == [id]


CHANGES = {
    "deleted": "DELETE FROM sqlane_jobs WHERE id = :id",
    "set running": "UPDATE sqlane_jobs SET status = 'running' WHERE id = :id",
    "completed": "UPDATE sqlane_jobs SET status = 'completed' WHERE id = :id",
    "put off": "UPDATE sqlane_jobs SET run_at = run_at + interval '1 hour' WHERE id = :id",
    "without its keys": "UPDATE sqlane_jobs SET mutex_keys = NULL, run_at = run_at + interval '1 h' WHERE id = :id",
}


@pytest.mark.parametrize("window", [1, 500])
@pytest.mark.parametrize("change", CHANGES)
def test_a_place_left_over_from_a_job_changed_by_hand_blocks_nobody(
    any_conn: sa.Connection, queue: Queue, change: str, window: int
) -> None:
    hold(any_conn, "a")
    add_many(any_conn, queue, 2, mutex_keys=["a"])
    changed = add(any_conn, queue, mutex_keys=["k"])
    id = add(any_conn, queue, mutex_keys=["k"])
    run(any_conn, CHANGES[change], id=changed)
    assert ("k", changed) in lines(any_conn)
    assert candidates(any_conn, queue, window=window) == [id]
