"""complete_and_claim: what has ended and what is due, in one statement."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.races import committed, rival
from tests.store.steps import (
    add,
    add_many,
    age,
    claim,
    end_lease,
    ids_of,
    job_row,
    rows,
    run,
    running,
    statements,
    status,
)

WAITS_WHILE_IT_CLAIMS = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(35); RETURN NEW; END $$;
CREATE TRIGGER wait BEFORE UPDATE ON sqlane_jobs FOR EACH ROW
    WHEN (OLD.status = 'pending' AND NEW.status = 'running') EXECUTE FUNCTION wait()"""


def turn(
    conn: sa.Connection, queue: Queue, *jobs: Any, limit: int = 10, token: str = "t2", **options: Any
) -> store.Turn:
    lanes = options.pop("lanes", [("n", 0, limit)])
    after = options.pop("after", {})
    return store.complete_and_claim(
        conn, queue.tables, jobs=jobs, lanes=lanes, after=after, lock_token=token, locked_by="w", lease=40
    )


def test_both_in_one_statement(any_conn: sa.Connection, queue: Queue) -> None:
    done = running(any_conn, queue, payload={"a": 1})
    ids = add_many(any_conn, queue, 3, payload={"b": 2})
    with statements(any_conn) as sent:
        result = turn(any_conn, queue, done, limit=2)
    assert len(sent) == 1
    assert result.skipped == []
    assert ids_of(result.claimed) == ids[:2]
    assert {(job.lock_token, job.payload_text) for job in result.claimed} == {("t2", '{"b":2}')}
    row = job_row(any_conn, done.id)
    assert (row["status"], row["attempts"], row["lock_token"]) == ("completed", 1, None)
    assert [status(any_conn, id_) for id_ in ids] == ["running", "running", "pending"]
    assert set(rows(any_conn, "SELECT id FROM sqlane_payloads")) == set(ids)


def test_one_half_alone(any_conn: sa.Connection, queue: Queue) -> None:
    done = running(any_conn, queue)
    id_ = add(any_conn, queue)
    assert turn(any_conn, queue, done, lanes=[]) == ([], [])
    assert status(any_conn, done.id) == "completed"
    assert ids_of(turn(any_conn, queue).claimed) == [id_]
    assert turn(any_conn, queue, lanes=[]) == ([], [])


def test_a_retention_of_nothing(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", completed_retention=0)
    done = running(any_conn, queue)
    assert turn(any_conn, queue, done).skipped == []
    assert status(any_conn, done.id) is None
    assert rows(any_conn, "SELECT id FROM sqlane_payloads") == []


def test_lost_leases_are_skipped_and_change_nothing(any_conn: sa.Connection, queue: Queue) -> None:
    done, lost, again = (running(any_conn, queue, token=token) for token in ("a", "b", "c"))
    store.release(any_conn, queue.tables, job=again)
    [again_now] = claim(any_conn, queue, again.id, token="d")
    end_lease(any_conn, lost.id)
    store.recover_stale(any_conn, queue.tables, id=lost.id, lease=40, stall_delay=30)
    result = turn(any_conn, queue, done, lost, again, JobLock("unknown", "x"), limit=0)
    assert sorted(result.skipped) == sorted([lost.id, again.id, "unknown"])
    assert status(any_conn, done.id) == "completed"
    assert status(any_conn, lost.id) == "pending"
    assert (status(any_conn, again.id), job_row(any_conn, again.id)["lock_token"]) == ("running", again_now.lock_token)
    assert turn(any_conn, queue, done).skipped == [done.id], "repeated, it changes nothing and says so"


def test_it_waits_for_nobody(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        one, two = running(conn, queue), running(conn, queue)
        ids = add_many(conn, queue, 2)
    with engine.connect() as rival, engine.connect() as conn:
        rival.execute(
            sa.text("SELECT FROM sqlane_jobs WHERE id = ANY(:ids) FOR UPDATE"), {"ids": [one.id, ids[0]]}
        ).close()
        conn.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        result = turn(conn, queue, one, two)
        assert (result.skipped, ids_of(result.claimed)) == ([one.id], [ids[1]])
        rival.rollback()
        # What was locked once is left to the statement that locks.
        assert turn(conn, queue, one).skipped == [one.id]
        assert store.complete_unlocked(conn, queue.tables, jobs=[one]) == [one.id]


def test_a_row_that_changes_after_the_snapshot_is_skipped(engine: sa.Engine, queue: Queue) -> None:
    """Renewed by a transaction that commits between the snapshot of the statement and its lock: the statement does not
    see the place of the new version, and must not report it as done."""
    with engine.begin() as conn:
        done = running(conn, queue)
        id_ = add(conn, queue)
        run(conn, WAITS_WHILE_IT_CLAIMS)
    with engine.begin() as holder:
        run(holder, "SELECT pg_advisory_xact_lock(35)")
        with rival(engine, lambda conn: turn(conn, queue, done)) as result:
            assert committed(engine, lambda conn: store.renew_leases(conn, queue.tables, jobs=[done], lease=99))
            holder.rollback()
    assert (result.result().skipped, ids_of(result.result().claimed)) == ([done.id], [id_])
    assert committed(engine, lambda conn: status(conn, done.id)) == "running"
    assert committed(engine, lambda conn: store.complete(conn, queue.tables, jobs=[done])) == [done.id]


def test_a_claim_begins_after_a_place(any_conn: sa.Connection, queue: Queue) -> None:
    ids = add_many(any_conn, queue, 5)
    other = add(any_conn, queue, "o")
    first = turn(any_conn, queue, limit=2).claimed
    place = {("n", 0): (first[-1].run_at, first[-1].id)}
    store.release(any_conn, queue.tables, job=first[0], delay=None)
    lanes = [("n", 0, 2), ("o", 0, 2)]
    second = turn(any_conn, queue, lanes=lanes, after=place, token="t3").claimed
    assert sorted(ids_of(second)) == sorted([*ids[2:4], other])
    late = add(any_conn, queue)
    age(any_conn, late, 60)
    third = turn(any_conn, queue, after=place, token="t4").claimed
    assert ids_of(third) == [ids[4]], "what came in before the place is not seen"
    assert set(ids_of(turn(any_conn, queue, token="t5").claimed)) == {late, ids[0]}
