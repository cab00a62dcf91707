"""make_due: pending jobs of the names are due now, and stand in line by their new time."""

import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.races import committed, rival
from tests.store.steps import add, candidates, claim, ids_of, job_row, lines, rows, running, status


def test_delayed_jobs_are_due_at_once(any_conn: sa.Connection, queue: Queue) -> None:
    later, soon = (add(any_conn, queue, "n", delay=delay) for delay in (3600, 60))
    due = add(any_conn, queue, "n")
    other = add(any_conn, queue, "other", delay=60)
    before = rows(any_conn, "SELECT run_at FROM sqlane_jobs WHERE id = :id", id=due)
    assert store.make_due(any_conn, queue.tables, names=["n", "unknown"]) == 2
    assert set(candidates(any_conn, queue)) == {later, soon, due}
    assert rows(any_conn, "SELECT run_at FROM sqlane_jobs WHERE id = :id", id=due) == before
    assert job_row(any_conn, other)["run_at"] > 50
    assert store.make_due(any_conn, queue.tables, names=["n"]) == 0
    assert store.make_due(any_conn, queue.tables, names=[]) == 0


def test_only_pending_jobs(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue)
    assert store.make_due(any_conn, queue.tables, names=["n"]) == 0
    assert status(any_conn, job.id) == "running"


def test_jobs_with_keys_move_in_their_lines(any_conn: sa.Connection, queue: Queue) -> None:
    delayed = [add(any_conn, queue, mutex_keys=["b", "a"], delay=3600 - i) for i in range(2)]
    assert store.make_due(any_conn, queue.tables, names=["n"]) == 2
    assert lines(any_conn) == [("a", delayed[0]), ("a", delayed[1]), ("b", delayed[0]), ("b", delayed[1])]
    assert rows(any_conn, "SELECT count(*) FROM sqlane_waits AS w NATURAL JOIN sqlane_jobs AS j(job_id)") == [4]
    assert candidates(any_conn, queue) == delayed[:1]
    store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, delayed[0]))
    assert candidates(any_conn, queue) == delayed[1:]


def test_it_waits_for_a_claim_and_then_leaves_the_job_alone(engine: sa.Engine, queue: Queue) -> None:
    id = committed(engine, lambda conn: add(conn, queue, delay=3600, mutex_keys=["k"]))
    with engine.connect() as one:
        store.make_due(one, queue.tables, names=["n"])
        assert ids_of(claim(one, queue, id)) == [id]
        with rival(engine, lambda conn: store.make_due(conn, queue.tables, names=["n"])) as result:
            one.commit()
        assert result.result() == 0
        assert (status(one, id), lines(one)) == ("running", [])
