"""find_candidates: due jobs in the order in which they should start, and FIFO per key."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.steps import add, add_many, age, candidates, claim, end_lingers, holds, run, running


def test_due_jobs_in_order_of_priority_then_time_then_id(any_conn: sa.Connection, queue: Queue) -> None:
    last = add(any_conn, queue, priority=1)
    tie = add_many(any_conn, queue, 3)
    early = add(any_conn, queue)
    age(any_conn, early, 60)
    first = add(any_conn, queue, priority=-1)
    assert candidates(any_conn, queue) == [first, early, *tie, last]


def test_only_pending_jobs_that_are_due(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, delay=60)
    add(any_conn, queue, delay=60, priority=-5)
    running(any_conn, queue)
    store.complete(any_conn, queue.tables, jobs=[running(any_conn, queue)])
    id = add(any_conn, queue)
    assert candidates(any_conn, queue) == [id]


@pytest.mark.parametrize("keys", [None, ["k"]])
def test_the_limit_is_per_name(any_conn: sa.Connection, queue: Queue, keys: list[str] | None) -> None:
    for name in ("a", "b", "c", "d"):
        for i in range(3):
            add(any_conn, queue, name, priority=i, mutex_keys=keys and [f"{name}{i}"])
    ids = candidates(any_conn, queue, limits_by_name={"a": 1, "b": 2, "c": 0, "unknown": 5})
    names = [store.get(any_conn, queue.tables, id=id).name for id in ids]
    assert sorted(names) == ["a", "b", "b"]
    assert candidates(any_conn, queue, limits_by_name={}) == []


def test_names_take_turns_within_a_priority(any_conn: sa.Connection, queue: Queue) -> None:
    long = add_many(any_conn, queue, 4, "long")
    short = add_many(any_conn, queue, 2, "short")
    urgent = add(any_conn, queue, "long", priority=-1)
    assert candidates(any_conn, queue) == [urgent, long[0], short[0], long[1], short[1], *long[2:]]


def test_delayed_jobs_of_a_better_priority_are_not_in_the_way(conn: sa.Connection, queue: Queue) -> None:
    add_many(conn, queue, 2000, priority=-1, delay=60)
    ids = add_many(conn, queue, 2)
    assert candidates(conn, queue, limit=1) == ids[:1]


def test_fifo_per_key_across_names(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, name, mutex_keys=["k"]) for name in ("b", "a", "c")]
    for id in ids:
        assert candidates(any_conn, queue) == [id]
        store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, id))


def test_an_older_job_of_a_name_that_nobody_asked_for_is_still_first(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, "elsewhere", mutex_keys=["k"])
    add(any_conn, queue, "here", mutex_keys=["k"])
    assert candidates(any_conn, queue, limits_by_name={"here": 10}) == []


def test_priority_never_breaks_the_order_of_a_key(any_conn: sa.Connection, queue: Queue) -> None:
    first = add(any_conn, queue, priority=100, mutex_keys=["k"])
    add(any_conn, queue, priority=-100, mutex_keys=["k"])
    other = add(any_conn, queue, priority=50, mutex_keys=["other"])
    assert candidates(any_conn, queue) == [other, first]


def test_ties_within_a_millisecond_are_in_order_of_id(any_conn: sa.Connection, queue: Queue) -> None:
    ids = add_many(any_conn, queue, 20, mutex_keys=["k"])
    run(any_conn, "UPDATE sqlane_jobs SET run_at = date_trunc('second', run_at)")
    run(any_conn, "UPDATE sqlane_waits SET run_at = date_trunc('second', run_at)")
    for id in ids:
        assert candidates(any_conn, queue) == [id]
        store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, id))


def test_a_job_that_is_not_due_does_not_block_its_key(any_conn: sa.Connection, queue: Queue) -> None:
    delayed = add(any_conn, queue, mutex_keys=["k"], delay=0.05)
    age(any_conn, delayed, -60)
    id = add(any_conn, queue, mutex_keys=["k"])
    assert candidates(any_conn, queue) == [id]


def test_a_job_in_its_back_off_does_not_block_its_key(any_conn: sa.Connection, queue: Queue) -> None:
    failed = running(any_conn, queue, mutex_keys=["k"])
    id = add(any_conn, queue, mutex_keys=["k"])
    assert candidates(any_conn, queue) == []
    store.retry(any_conn, queue.tables, job=failed, delay=60)
    assert candidates(any_conn, queue) == [id]


def test_a_retried_job_that_is_due_again_queues_up_behind(any_conn: sa.Connection, queue: Queue) -> None:
    failed = running(any_conn, queue, mutex_keys=["k"])
    id = add(any_conn, queue, mutex_keys=["k"])
    age(any_conn, id, 1)
    store.retry(any_conn, queue.tables, job=failed, delay=0)
    assert candidates(any_conn, queue) == [id]
    store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, id))
    assert candidates(any_conn, queue) == [failed.id]


def test_a_held_key_blocks(any_conn: sa.Connection, queue: Queue) -> None:
    holder = running(any_conn, queue, mutex_keys=["k"])
    id = add(any_conn, queue, mutex_keys=["k"])
    free = add(any_conn, queue, mutex_keys=["other"])
    assert candidates(any_conn, queue) == [free]
    store.complete(any_conn, queue.tables, jobs=[holder])
    assert candidates(any_conn, queue) == [id, free]


def test_a_linger_blocks_the_next_job_and_its_own(any_conn: sa.Connection, queue: Queue) -> None:
    """Its own too: the handler that was released may still run."""
    holder = running(any_conn, queue, mutex_keys=["k"])
    store.release(any_conn, queue.tables, job=holder, linger=60)
    assert candidates(any_conn, queue) == []
    id = add(any_conn, queue, mutex_keys=["k"])
    age(any_conn, id, 60)
    assert candidates(any_conn, queue) == []
    end_lingers(any_conn)
    assert holds(any_conn), "an ended linger is free before it is swept"
    assert candidates(any_conn, queue) == [id]


def test_a_job_waits_for_all_its_keys(any_conn: sa.Connection, queue: Queue) -> None:
    holder = running(any_conn, queue, mutex_keys=["b"])
    both = add(any_conn, queue, mutex_keys=["a", "b"])
    behind = add(any_conn, queue, mutex_keys=["a"])
    assert candidates(any_conn, queue) == [], "the second waits in the line of a, the first for b"
    store.complete(any_conn, queue.tables, jobs=[holder])
    assert candidates(any_conn, queue) == [both]
    store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, both))
    assert candidates(any_conn, queue) == [behind]


def test_the_head_of_every_line_starts_at_once(any_conn: sa.Connection, queue: Queue) -> None:
    heads = [add(any_conn, queue, mutex_keys=[key]) for key in "abcdef"]
    for key in "abcdef":
        add(any_conn, queue, mutex_keys=[key])
    assert candidates(any_conn, queue) == heads
    assert candidates(any_conn, queue, limit=4) == heads[:4]


def test_keyed_names_narrow_the_search(any_conn: sa.Connection, queue: Queue) -> None:
    plain = add(any_conn, queue, "a")
    keyed = add(any_conn, queue, "b", mutex_keys=["k"])
    assert candidates(any_conn, queue) == [plain, keyed]
    assert candidates(any_conn, queue, keyed_names={"b"}) == [plain, keyed]
    assert candidates(any_conn, queue, keyed_names={"a"}) == [plain]
    assert store.find_keyed_candidates(any_conn, queue.tables, limits_by_name={"a": 9, "b": 9}) == [keyed]
