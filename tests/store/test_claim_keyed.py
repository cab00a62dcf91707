"""The claims of jobs with mutex keys in one statement: the same rules as the general way, and what each returns."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import ClaimedJob
from tests.store.steps import (
    LEASE,
    TOKEN,
    add,
    add_many,
    age,
    candidates,
    end_lingers,
    holds,
    ids_of,
    job_row,
    lines,
    run,
    running,
    statements,
    status,
)

BY = {"lock_token": TOKEN, "locked_by": "worker-1", "lease": LEASE}


def claim_keyed(conn: sa.Connection, queue: Queue, limit: int = 100, **options: Any) -> list[ClaimedJob]:
    names = options.pop("names", list(queue.definitions))
    return store.claim_keyed(conn, queue.tables, names=names, limit=limit, **(BY | options)).jobs


def claim_heads(conn: sa.Connection, queue: Queue, *keys: str, limit: int = 100, **options: Any) -> list[ClaimedJob]:
    names = options.pop("names", list(queue.definitions))
    return store.claim_heads(conn, queue.tables, keys=keys, names=names, limit=limit, **(BY | options))


def test_it_starts_what_the_general_way_would(any_conn: sa.Connection, queue: Queue) -> None:
    running(any_conn, queue, mutex_keys=["held"], token="other")
    first = add(any_conn, queue, payload=[1], mutex_keys=["k", "other"])
    add(any_conn, queue, mutex_keys=["k"])
    add(any_conn, queue, mutex_keys=["held"])
    add(any_conn, queue, mutex_keys=["later"], delay=60)
    add(any_conn, queue, "plain")
    second = add(any_conn, queue, "best", mutex_keys=["b"], priority=-1)
    assert candidates(any_conn, queue, limits_by_name={"n": 9, "best": 9}) == [second, first]
    got = claim_keyed(any_conn, queue)
    assert ids_of(got) == [second, first]
    assert [(job.payload_text, job.mutex_keys, job.lock_token) for job in got] == [
        ("null", ["b"], TOKEN),
        ("[1]", ["k", "other"], TOKEN),
    ]
    assert {key: job for key, (job, _) in holds(any_conn).items() if key != "held"} == {
        "b": second,
        "k": first,
        "other": first,
    }
    assert first not in dict(lines(any_conn)).values()
    row = job_row(any_conn, first)
    assert (row["status"], row["locked_by"], row["attempts"]) == ("running", "worker-1", 0)
    assert row["locked_until"] == pytest.approx(LEASE, abs=5)
    assert claim_keyed(any_conn, queue) == []


def test_it_is_one_statement(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, mutex_keys=["a", "b"])
    with statements(any_conn) as sent:
        assert len(claim_keyed(any_conn, queue)) == 1
        assert claim_keyed(any_conn, queue) == []
        claim_heads(any_conn, queue, "a")
    assert len(sent) == 3


def test_the_limit_is_for_all_and_names_take_turns(any_conn: sa.Connection, queue: Queue) -> None:
    a = [add(any_conn, queue, "a", mutex_keys=[f"a{i}"]) for i in range(5)]
    b = [add(any_conn, queue, "b", mutex_keys=[f"b{i}"]) for i in range(5)]
    got = claim_keyed(any_conn, queue, 4)
    assert sorted(ids_of(got)) == sorted(a[:2] + b[:2])
    assert ids_of(claim_keyed(any_conn, queue, 2, names=["b"])) == b[2:4]
    assert claim_keyed(any_conn, queue, 0) == claim_keyed(any_conn, queue, names=[]) == []


def test_names_with_no_room_in_their_windows_are_short(any_conn: sa.Connection, queue: Queue) -> None:
    running(any_conn, queue, mutex_keys=["held"], token="other")
    add_many(any_conn, queue, 9, "blocked", mutex_keys=["held"])
    add(any_conn, queue, "blocked", mutex_keys=["free"])
    add_many(any_conn, queue, 3, "few", mutex_keys=["held"])
    add(any_conn, queue, "blocked", mutex_keys=["worse"], priority=1)
    options = {"names": ["blocked", "few", "n"], "limit": 2, "window": 5, **BY}
    jobs, short = store.claim_keyed(any_conn, queue.tables, **options)
    assert [job.mutex_keys for job in jobs] == [["worse"]]
    assert short == ["blocked"]
    found = store.find_free_lines(any_conn, queue.tables, names=short)
    assert found == (["free"], None)
    assert len(claim_heads(any_conn, queue, *found.keys)) == 1


def test_a_window_is_short_whatever_can_start_at_a_worse_priority(any_conn: sa.Connection, queue: Queue) -> None:
    """The better one past a full window comes first, however many could start after it."""
    running(any_conn, queue, mutex_keys=["held"], token="other")
    add_many(any_conn, queue, 9, "n", mutex_keys=["held"])
    add(any_conn, queue, mutex_keys=["free"])
    worse = [add(any_conn, queue, mutex_keys=[f"worse-{i}"], priority=1) for i in range(3)]
    jobs, short = store.claim_keyed(any_conn, queue.tables, names=["n"], limit=2, window=5, **BY)
    assert (ids_of(jobs), short) == (worse[:2], ["n"])


def test_free_lines_are_found_in_stretches_and_by_priority(any_conn: sa.Connection, queue: Queue) -> None:
    for key, priority in (("a", 5), ("b", -5), ("c", 0), ("d", 0)):
        add(any_conn, queue, mutex_keys=[key], priority=priority)
    running(any_conn, queue, "other", mutex_keys=["held"], token="other")
    add(any_conn, queue, "other", mutex_keys=["a", "z"])
    add(any_conn, queue, mutex_keys=["held"])

    def find(**options: Any) -> Any:
        return store.find_free_lines(any_conn, queue.tables, names=["n"], **options)

    assert find(heads=2) == (["b", "a"], "b")
    assert find(heads=2, after_key="b") == (["c", "d"], "d")
    assert find(heads=3, after_key="d") == ([], None)
    assert find() == (["b", "c", "d", "a"], None)
    assert store.find_free_lines(any_conn, queue.tables, names=["other"]) == ([], None)


def test_heads_of_freed_keys_start_in_the_order_of_their_lines(any_conn: sa.Connection, queue: Queue) -> None:
    first, second = add_many(any_conn, queue, 2, mutex_keys=["k"])
    pair = add(any_conn, queue, mutex_keys=["x", "y"])
    age(any_conn, second, 60)
    assert ids_of(claim_heads(any_conn, queue, "k", "x", "y", "nobody")) == [second, pair]
    assert claim_heads(any_conn, queue, "k") == []
    store.complete(any_conn, queue.tables, jobs=[store.JobLock(second, TOKEN)])
    assert claim_heads(any_conn, queue, "k", names=["another"]) == []
    assert ids_of(claim_heads(any_conn, queue, "k")) == [first]
    assert claim_heads(any_conn, queue) == claim_heads(any_conn, queue, "k", limit=0) == []


def test_a_head_whose_other_key_is_held_or_in_another_line_waits(any_conn: sa.Connection, queue: Queue) -> None:
    running(any_conn, queue, mutex_keys=["held"], token="other")
    add(any_conn, queue, mutex_keys=["k", "held"])
    add(any_conn, queue, mutex_keys=["l"])
    add(any_conn, queue, mutex_keys=["m", "l"])
    assert claim_heads(any_conn, queue, "k", "m") == []


def test_the_first_in_line_that_is_not_due_yet_blocks_nobody(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, mutex_keys=["k"], delay=60)
    due = add(any_conn, queue, mutex_keys=["k"])
    assert ids_of(claim_heads(any_conn, queue, "k")) == [due]


def test_a_linger_holds_until_its_end(any_conn: sa.Connection, queue: Queue) -> None:
    old = running(any_conn, queue, mutex_keys=["k"])
    store.release(any_conn, queue.tables, job=old, linger=60)
    assert claim_keyed(any_conn, queue) == claim_heads(any_conn, queue, "k") == []
    end_lingers(any_conn)
    assert ids_of(claim_heads(any_conn, queue, "k", lock_token="t2")) == [old.id]
    assert holds(any_conn) == {"k": (old.id, False)}


@pytest.mark.parametrize("keys", ["{}", "{NULL}", "{a,a,NULL}", "{{a,b},{b,c}}"])
def test_keys_that_were_written_by_hand(any_conn: sa.Connection, queue: Queue, keys: str) -> None:
    """None of them, twice the same, of more dimensions than one."""
    id = add(any_conn, queue, mutex_keys=["a"])
    run(any_conn, f"UPDATE sqlane_jobs SET mutex_keys = CAST('{keys}' AS text[]) WHERE id = :id", id=id)
    got = claim_keyed(any_conn, queue)
    assert ids_of(got) == [id]
    assert set(holds(any_conn)) == set(got[0].mutex_keys or ())


@pytest.mark.parametrize("names", ["nn", "mn", "nm"])
def test_of_two_that_share_a_key_without_a_place_the_older_starts(
    any_conn: sa.Connection, queue: Queue, names: str
) -> None:
    """Nobody is ahead in a line that is empty, and one gets a part of its keys: it is put back. Those of one name are
    told apart in their window, those of two when they take the key."""
    first = add(any_conn, queue, names[0], mutex_keys=["k", "z"])
    second = add(any_conn, queue, names[1], mutex_keys=["a", "k"])
    run(any_conn, "DELETE FROM sqlane_waits")
    assert ids_of(claim_keyed(any_conn, queue)) == [first]
    assert set(holds(any_conn)) == {"k", "z"}
    assert status(any_conn, second) == "pending"


def test_places_left_over_in_a_line_block_nobody(any_conn: sa.Connection, queue: Queue) -> None:
    gone = add(any_conn, queue, mutex_keys=["k"])
    id = add(any_conn, queue, mutex_keys=["k"])
    run(any_conn, "DELETE FROM sqlane_jobs WHERE id = :id", id=gone)
    assert ids_of(claim_heads(any_conn, queue, "k")) == [id]


def test_a_head_at_an_old_place_waits_for_who_is_ahead_of_its_own(any_conn: sa.Connection, queue: Queue) -> None:
    """Moved by hand: it is first where it was, and second where it is."""
    moved, ahead = add_many(any_conn, queue, 2, mutex_keys=["k"])
    age(any_conn, moved, 60)
    age(any_conn, ahead, 30)
    run(any_conn, "UPDATE sqlane_jobs SET run_at = run_at + interval '50 s' WHERE id = :id", id=moved)
    assert claim_heads(any_conn, queue, "k") == []
    assert ids_of(claim_keyed(any_conn, queue)) == [ahead]


def test_a_large_payload_is_left_for_later(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, payload="x" * store.INLINE_BYTES, mutex_keys=["k"])
    assert claim_keyed(any_conn, queue)[0].payload_text is None
