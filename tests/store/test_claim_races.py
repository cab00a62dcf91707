"""claim against a second real connection that is held on a lock."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.races import committed, rival
from tests.store.steps import (
    add,
    add_many,
    candidates,
    claim,
    end_lingers,
    holds,
    ids_of,
    job_row,
    lines,
    rows,
    running,
)
from tests.store.test_claim_keyed import claim_heads, claim_keyed


def test_a_row_locked_elsewhere_is_skipped_and_not_waited_for(engine: sa.Engine, queue: Queue) -> None:
    ids = committed(engine, lambda conn: add_many(conn, queue, 3))
    with engine.connect() as one, engine.connect() as two:
        one.exec_driver_sql(f"SELECT FROM sqlane_jobs WHERE id = '{ids[1]}' FOR UPDATE")
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert ids_of(claim(two, queue, *ids)) == [ids[0], ids[2]]


def test_a_job_that_was_changed_between_look_and_lock_is_left_alone(engine: sa.Engine, queue: Queue) -> None:
    done, put_off, taken, id = committed(engine, lambda conn: add_many(conn, queue, 4))
    with engine.connect() as conn:
        found = candidates(conn, queue)
        with engine.begin() as other:
            store.complete(other, queue.tables, jobs=claim(other, queue, done))
            store.release(other, queue.tables, job=claim(other, queue, put_off)[0], delay=60)
            claim(other, queue, taken, token="other")
        assert ids_of(claim(conn, queue, *found)) == [id]


def test_two_claims_of_one_key_the_first_wins(engine: sa.Engine, queue: Queue) -> None:
    first, second = committed(engine, lambda conn: [add(conn, queue, mutex_keys=[key, "k"]) for key in ("z", "a")])
    with engine.connect() as one:
        assert ids_of(claim(one, queue, first)) == [first]
        with rival(engine, lambda conn: claim(conn, queue, second, token="other")) as result:
            one.commit()
        assert result.result() == []
        assert holds(one) == {"k": (first, False), "z": (first, False)}, "the key a was put back"
        assert lines(one) == [("a", second), ("k", second)]
        assert job_row(one, second)["status"] == "pending"


def test_two_claims_of_one_key_the_first_rolls_back(engine: sa.Engine, queue: Queue) -> None:
    first, second = committed(engine, lambda conn: [add(conn, queue, mutex_keys=["k"]) for _ in range(2)])
    with engine.connect() as one:
        claim(one, queue, first)
        with rival(engine, lambda conn: claim(conn, queue, second, token="other")) as result:
            one.rollback()
        assert ids_of(result.result()) == [second]
        assert holds(one) == {"k": (second, False)}


def test_the_lease_counts_from_the_end_of_the_wait(engine: sa.Engine, queue: Queue) -> None:
    first, second = committed(engine, lambda conn: [add(conn, queue, mutex_keys=["k"]) for _ in range(2)])
    with engine.connect() as one:
        claim(one, queue, first)
        with rival(engine, lambda conn: claim(conn, queue, second)) as result:
            waited_until = rows(one, "SELECT clock_timestamp()")[0]
            one.rollback()
        assert result.result()
        assert rows(one, "SELECT started_at FROM sqlane_jobs WHERE id = :id", id=second)[0] > waited_until


def test_two_claims_of_an_ended_linger_only_one_takes_it_over(engine: sa.Engine, queue: Queue) -> None:
    def linger(conn: sa.Connection) -> list[str]:
        old = running(conn, queue, mutex_keys=["k"])
        store.release(conn, queue.tables, job=old, linger=60, delay=60)
        end_lingers(conn)
        return [add(conn, queue, mutex_keys=["k"]) for _ in range(2)]

    first, second = committed(engine, linger)
    with engine.connect() as one:
        assert ids_of(claim(one, queue, first)) == [first]
        with rival(engine, lambda conn: claim(conn, queue, second, token="other")) as result:
            one.commit()
        assert result.result() == []
        assert holds(one) == {"k": (first, False)}


def test_a_key_that_is_freed_meanwhile_is_taken(engine: sa.Engine, queue: Queue) -> None:
    holder, id = committed(
        engine, lambda conn: (running(conn, queue, mutex_keys=["k"]), add(conn, queue, mutex_keys=["k"]))
    )
    with engine.connect() as one:
        store.complete(one, queue.tables, jobs=[holder])
        everything = {"pick": lambda due, busy: due, "token": "other"}
        with rival(engine, lambda conn: claim(conn, queue, id, **everything)) as result:
            one.commit()
        assert ids_of(result.result()) == [id]
        assert holds(one) == {"k": (id, False)}


def test_a_key_that_begins_to_linger_meanwhile_is_not_taken(engine: sa.Engine, queue: Queue) -> None:
    holder, id = committed(
        engine, lambda conn: (running(conn, queue, mutex_keys=["k"]), add(conn, queue, mutex_keys=["k"]))
    )
    with engine.connect() as one:
        store.release(one, queue.tables, job=holder, linger=60)
        everything = {"pick": lambda due, busy: due, "token": "other"}
        with rival(engine, lambda conn: claim(conn, queue, id, **everything)) as result:
            one.commit()
        assert result.result() == []
        assert holds(one) == {"k": (holder.id, True)}


@pytest.mark.parametrize("way", ["claim", "claim_keyed", "claim_heads"])
def test_claims_of_the_same_two_keys_wait_in_one_direction(engine: sa.Engine, queue: Queue, way: str) -> None:
    """Each takes the lower key first, whichever job has it and whichever job is first: no circle. In the order of the
    jobs, or a descending one, the rival would hold z and wait for a, while this one holds a and waits for z."""
    z, a = committed(engine, lambda conn: [add(conn, queue, mutex_keys=[key]) for key in ("z", "a")])
    ways: dict[str, Callable[[sa.Connection], list[store.ClaimedJob]]] = {
        "claim": lambda conn: claim(conn, queue, z, a, token="other"),
        "claim_keyed": lambda conn: claim_keyed(conn, queue, lock_token="other"),
        "claim_heads": lambda conn: claim_heads(conn, queue, "z", "a", lock_token="other"),
    }
    with engine.connect() as one:
        held = {"a": (running(one, queue, mutex_keys=["a"]).id, False)}
        one.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        one.exec_driver_sql("SET LOCAL deadlock_timeout = '10s'")
        with rival(engine, ways[way]) as result:
            held["z"] = (running(one, queue, mutex_keys=["z"]).id, False)
            one.commit()
        assert result.result() == []
        assert holds(one) == held


@pytest.mark.parametrize("kinds", [("snoozed", "stopped"), ("stopped", "snoozed")])
def test_a_batch_of_releases_and_a_claim_wait_in_one_direction(
    engine: sa.Engine, queue: Queue, kinds: tuple[str, str]
) -> None:
    """Some keys of the batch are freed and some linger, and all are locked in ascending order at first. In two
    orders, the release would hold b and wait for a, and the claim, which looked before it and holds a, wait for b."""

    def prepare(conn: sa.Connection) -> tuple[list, str]:
        held = [running(conn, queue, mutex_keys=[key]) for key in ("a", "b")]
        return held, add(conn, queue, mutex_keys=["a", "b"])

    held, id = committed(engine, prepare)
    lingers = {"snoozed": None, "stopped": 60.0}
    releases = [
        store.ReleaseWrite(job.id, job.lock_token, 60.0, lingers[kind]) for job, kind in zip(held, kinds, strict=True)
    ]
    with engine.connect() as one:
        # The first step of a claim of both keys, as ON CONFLICT DO UPDATE takes it.
        lock = "SELECT FROM sqlane_mutexes WHERE mutex_key = '{}' FOR UPDATE"
        one.exec_driver_sql(lock.format("a"))
        one.exec_driver_sql("SET LOCAL deadlock_timeout = '10s'")
        with rival(engine, lambda conn: store.release_many(conn, queue.tables, releases=releases)) as result:
            one.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            one.exec_driver_sql(lock.format("b"))
            one.rollback()
        assert sorted(result.result()) == sorted(ids_of(held))
        assert candidates(one, queue) == []
        assert id
