"""The keyed claims of one statement, held up by a second connection between what they saw and what they take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.statement import Statement
from tests.store.races import committed, rival
from tests.store.steps import add, add_many, age, claim, holds, ids_of, job_row, lines, rows, running, status
from tests.store.test_claim_keyed import claim_heads, claim_keyed

# The module: the package has a function of this name.
module = importlib.import_module("sqlane_sa.store.claim_keyed")
GATE = 7


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch, engine: sa.Engine) -> None:
    """The claim in windows waits for an advisory lock when it has found its candidates, and before it locks them."""
    whole = module.CLAIM_IN_WINDOW
    found = "chosen AS MATERIALIZED (\n    SELECT f.place FROM ("
    assert found in whole.sql
    gate = f"chosen AS MATERIALIZED (\n    SELECT f.place FROM (SELECT pg_advisory_xact_lock({GATE})) AS gate, ("
    statement = Statement(whole.sql.replace(found, gate), whole.binds, whole.columns)
    monkeypatch.setattr(module, "CLAIM_IN_WINDOW", statement)


def shut(conn: sa.Connection) -> None:
    conn.exec_driver_sql(f"SELECT pg_advisory_lock({GATE})")


def open_up(conn: sa.Connection) -> None:
    conn.commit()
    conn.exec_driver_sql(f"SELECT pg_advisory_unlock({GATE})")
    conn.commit()


@pytest.mark.usefixtures("gated")
def test_a_job_that_moved_in_its_line_is_not_started_at_its_old_place(engine: sa.Engine, queue: Queue) -> None:
    """Claimed by another, and tried again: others are ahead of it now."""
    first, second = committed(engine, lambda conn: add_many(conn, queue, 2, mutex_keys=["k"]))
    committed(engine, lambda conn: [age(conn, id, 60) for id in (first, second)])
    with engine.connect() as one:
        shut(one)
        with rival(engine, lambda conn: claim_keyed(conn, queue, lock_token="late")) as result:
            committed(engine, lambda conn: age(conn, first, -30))
            open_up(one)
        assert result.result() == []
        assert holds(one) == {}
        assert ids_of(claim_keyed(one, queue)) == [second]


@pytest.mark.usefixtures("gated")
def test_a_job_that_was_handed_back_at_its_place_is_left_for_the_next_claim(engine: sa.Engine, queue: Queue) -> None:
    """It is pending and due, but not the row that was found: its keys are not taken, and the lock on it ends."""
    id, other = committed(engine, lambda conn: [add(conn, queue, mutex_keys=[key]) for key in "kl"])
    with engine.connect() as one:
        shut(one)
        with rival(engine, lambda conn: claim_keyed(conn, queue, lock_token="late")) as result:
            with engine.begin() as conn:
                store.release(conn, queue.tables, job=claim(conn, queue, id)[0], delay=None)
            open_up(one)
        assert ids_of(result.result()) == [other]
        assert holds(one) == {"l": (other, False)}
        assert ids_of(claim_keyed(one, queue)) == [id]


@pytest.mark.usefixtures("gated")
@pytest.mark.parametrize("linger", [None, 60.0])
def test_a_job_that_ran_meanwhile_is_left_alone(engine: sa.Engine, queue: Queue, linger: float | None) -> None:
    first, second = committed(engine, lambda conn: [add(conn, queue, mutex_keys=[key]) for key in "ab"])
    with engine.connect() as one:
        shut(one)
        with rival(engine, lambda conn: claim_keyed(conn, queue, lock_token="late")) as result:
            with engine.begin() as other:
                job = claim(other, queue, first)[0]
                store.release(other, queue.tables, job=job, delay=60, linger=linger)
            open_up(one)
        assert ids_of(result.result()) == [second]


def test_two_claims_at_once_share_what_is_there(engine: sa.Engine, queue: Queue) -> None:
    ids = committed(engine, lambda conn: [add(conn, queue, mutex_keys=[f"k{n}"]) for n in range(4)])
    with engine.connect() as one, engine.connect() as two:
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert ids_of(claim_keyed(one, queue, 2)) == ids[:2]
        assert ids_of(claim_keyed(two, queue, lock_token="other")) == ids[2:]
        assert claim_heads(two, queue, "k0", "k3", lock_token="other") == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_part_of_the_keys_is_put_back(engine: sa.Engine, queue: Queue, commits: bool) -> None:
    """The other's job is not in the line that this one sees: it was added and started in one transaction."""
    (id,) = committed(engine, lambda conn: [add(conn, queue, mutex_keys=["a", "k", "z"])])
    with engine.connect() as one:
        other = running(one, queue, mutex_keys=["k"])
        with rival(engine, lambda conn: claim_keyed(conn, queue, lock_token="late")) as result:
            one.commit() if commits else one.rollback()
        if commits:
            assert result.result() == []
            assert holds(one) == {"k": (other.id, False)}
            assert status(one, id) == "pending"
            assert [key for key, _ in lines(one)] == ["a", "k", "z"]
        else:
            assert ids_of(result.result()) == [id]
            assert set(holds(one)) == {"a", "k", "z"}


@pytest.mark.parametrize("by", [claim_keyed, lambda conn, queue, **options: claim_heads(conn, queue, "k", **options)])
def test_a_claim_in_autocommit_fails_as_a_whole_rather_than_to_keep_a_part(
    engine: sa.Engine, queue: Queue, by: Callable[..., Any]
) -> None:
    """There is no transaction in which the part could be put back before others see it. The rest is claimed next."""
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    id, free = committed(engine, lambda conn: [add(conn, queue, mutex_keys=list(keys)) for keys in ("akz", "q")])
    with engine.connect() as one:
        other = running(one, queue, mutex_keys=["k"])
        with rival(alone, lambda conn: by(conn, queue, lock_token="late", whole=True)) as result:
            one.commit()
        with pytest.raises(sa.exc.DataError, match=f"job {id} got a part of its mutex keys"):
            result.result()
        assert holds(one) == {"k": (other.id, False)}
        assert [status(one, each) for each in (id, free)] == ["pending"] * 2
        assert ids_of(claim_keyed(one, queue, whole=True)) == [free]


def test_a_linger_that_begins_meanwhile_is_not_taken_over(engine: sa.Engine, queue: Queue) -> None:
    (id,) = committed(engine, lambda conn: [add(conn, queue, mutex_keys=["k"])])
    with engine.connect() as one:
        store.release(one, queue.tables, job=running(one, queue, mutex_keys=["k"]), delay=60, linger=60)
        with rival(engine, lambda conn: claim_heads(conn, queue, "k", lock_token="late")) as result:
            one.commit()
        assert result.result() == []
        assert status(one, id) == "pending"


def test_the_lease_counts_from_the_end_of_a_long_wait(engine: sa.Engine, queue: Queue) -> None:
    (id,) = committed(engine, lambda conn: [add(conn, queue, mutex_keys=["k"])])
    with engine.connect() as one:
        running(one, queue, mutex_keys=["k"])
        with rival(engine, lambda conn: claim_keyed(conn, queue, lease=1.0)) as result:
            one.exec_driver_sql("SELECT pg_sleep(0.1)")
            waited_until = rows(one, "SELECT clock_timestamp()")[0]
            one.rollback()
        assert ids_of(result.result()) == [id]
        assert rows(one, "SELECT locked_until - interval '1 s' FROM sqlane_jobs")[0] > waited_until


def test_a_release_and_a_claim_of_the_same_keys_wait_in_one_direction(engine: sa.Engine, queue: Queue) -> None:
    """Both take the lower key first, whatever the order of the database's language: there, "a" comes before "B"."""
    job = committed(engine, lambda conn: running(conn, queue, mutex_keys=["a", "B"]))
    with engine.connect() as one:
        lock = "SELECT FROM sqlane_mutexes WHERE mutex_key = '{}' FOR UPDATE"
        one.exec_driver_sql(lock.format("B"))
        with rival(engine, lambda conn: store.complete(conn, queue.tables, jobs=[job])) as result:
            one.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            one.exec_driver_sql(lock.format("a"))
            one.rollback()
        assert result.result() == [job.id]
        assert holds(one) == {}


def test_releases_with_different_lingers_take_all_keys_in_one_order(engine: sa.Engine, queue: Queue) -> None:
    """Each linger is a statement of its own: keys locked one linger after the other could be waited for in a circle."""
    jobs = committed(engine, lambda conn: [running(conn, queue, mutex_keys=[key]) for key in "ba"])
    releases = [store.ReleaseWrite(job.id, job.lock_token, 0.0, float(n + 1)) for n, job in enumerate(jobs)]
    with engine.connect() as one:
        lock = "SELECT FROM sqlane_mutexes WHERE mutex_key = '{}' FOR UPDATE"
        one.exec_driver_sql(lock.format("a"))
        with rival(engine, lambda conn: store.release_many(conn, queue.tables, releases=releases)) as result:
            one.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
            one.exec_driver_sql(lock.format("b"))
            one.rollback()
        assert sorted(result.result()) == sorted(job.id for job in jobs)
        assert {key for key, (_, lingers) in holds(one).items() if lingers} == {"a", "b"}


def test_a_hold_that_was_taken_over_while_the_free_waited_stays(engine: sa.Engine, queue: Queue) -> None:
    """A late finish: its linger ended, and another took the key in this very moment."""

    def prepare(conn: sa.Connection) -> tuple[store.ClaimedJob, str]:
        old = running(conn, queue, mutex_keys=["k"])
        store.release(conn, queue.tables, job=old, delay=60, linger=60)
        conn.exec_driver_sql("UPDATE sqlane_mutexes SET held_until = statement_timestamp()")
        return old, add(conn, queue, mutex_keys=["k"])

    old, id = committed(engine, prepare)
    with engine.connect() as one:
        assert ids_of(claim_keyed(one, queue, lock_token="new")) == [id]
        with rival(engine, lambda conn: store.complete(conn, queue.tables, jobs=[old])) as result:
            one.commit()
        assert result.result() == []
        assert holds(one) == {"k": (id, False)}
        assert job_row(one, id)["status"] == "running"


def test_the_keys_are_taken_in_the_order_of_their_column(engine: sa.Engine, queue: Queue) -> None:
    """Not in that of the database's language, in which they would be locked by two in a circle."""
    claims = importlib.import_module("sqlane_sa.store.claim")
    assert 'ORDER BY i.mutex_key COLLATE "C"' in claims.ACQUIRE.sql
    with engine.connect() as conn:
        found = rows(
            conn,
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE table_name IN ('sqlane_mutexes', 'sqlane_waits', 'sqlane_jobs') AND column_name LIKE 'mutex_key%'",
        )
        assert found == ["C"]
