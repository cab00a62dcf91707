"""sweep_mutexes and sweep_waits: what was left over, in batches."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import WaitsSweep
from tests.store.races import committed
from tests.store.steps import add, add_many, candidates, claim, end_lingers, holds, lines, rows, run, running


def linger(conn: sa.Connection, queue: Queue, key: str) -> None:
    store.release(conn, queue.tables, job=running(conn, queue, mutex_keys=[key]), linger=60, delay=60)


def test_ended_lingers_and_holds_without_their_job(any_conn: sa.Connection, queue: Queue) -> None:
    linger(any_conn, queue, "ended-1")
    linger(any_conn, queue, "ended-2")
    end_lingers(any_conn)
    linger(any_conn, queue, "lingers")
    live = running(any_conn, queue, mutex_keys=["live"])
    orphans = {key: running(any_conn, queue, mutex_keys=[key]) for key in ("gone", "done", "other token")}
    run(any_conn, "DELETE FROM sqlane_jobs WHERE id = :id", id=orphans["gone"].id)
    run(any_conn, "UPDATE sqlane_jobs SET status = 'completed' WHERE id = :id", id=orphans["done"].id)
    run(any_conn, "UPDATE sqlane_jobs SET lock_token = 'new' WHERE id = :id", id=orphans["other token"].id)
    assert store.sweep_mutexes(any_conn, queue.tables, limit=100) == (2, 3)
    assert {key: id for key, (id, _) in holds(any_conn).items() if key != "lingers"} == {"live": live.id}
    assert "lingers" in holds(any_conn)
    assert store.sweep_mutexes(any_conn, queue.tables, limit=100) == (0, 0)


def test_at_most_the_limit_of_each(any_conn: sa.Connection, queue: Queue) -> None:
    for i in range(5):
        linger(any_conn, queue, f"l{i}")
        running(any_conn, queue, mutex_keys=[f"o{i}"])
    end_lingers(any_conn)
    run(any_conn, "DELETE FROM sqlane_jobs")
    counts = [tuple(store.sweep_mutexes(any_conn, queue.tables, limit=2)) for _ in range(4)]
    assert counts == [(2, 2), (2, 2), (1, 1), (0, 0)]


def test_locked_rows_are_skipped(engine: sa.Engine, queue: Queue) -> None:
    def prepare(conn: sa.Connection) -> None:
        for key in ("l1", "l2"):
            linger(conn, queue, key)
        end_lingers(conn)
        run(conn, "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('o1', '', ''), ('o2', '', '')")

    committed(engine, prepare)
    with engine.connect() as one, engine.connect() as two:
        run(one, "SELECT FROM sqlane_mutexes WHERE mutex_key IN ('l1', 'o1') FOR UPDATE")
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert store.sweep_mutexes(two, queue.tables, limit=100) == (1, 1)
        assert set(holds(two)) == {"l1", "o1"}


def test_a_linger_that_is_being_taken_over_is_not_swept(engine: sa.Engine, queue: Queue) -> None:
    def prepare(conn: sa.Connection) -> str:
        linger(conn, queue, "k")
        end_lingers(conn)
        return add(conn, queue, mutex_keys=["k"])

    id = committed(engine, prepare)
    with engine.connect() as one, engine.connect() as two:
        assert claim(one, queue, id, token="new")
        assert store.sweep_mutexes(two, queue.tables, limit=100) == (0, 0)
        one.commit()
        assert store.sweep_mutexes(two, queue.tables, limit=100) == (0, 0)
        assert holds(two) == {"k": (id, False)}


def test_places_whose_job_is_not_pending_there(any_conn: sa.Connection, queue: Queue) -> None:
    kept = add(any_conn, queue, mutex_keys=["a"])
    gone, done, moved = (add(any_conn, queue, mutex_keys=[key]) for key in ("a", "b", "c"))
    run(any_conn, "DELETE FROM sqlane_jobs WHERE id = :id", id=gone)
    run(any_conn, "UPDATE sqlane_jobs SET status = 'completed' WHERE id = :id", id=done)
    run(any_conn, "UPDATE sqlane_jobs SET run_at = run_at + interval '1 s' WHERE id = :id", id=moved)
    assert store.sweep_waits(any_conn, queue.tables, limit=100) == WaitsSweep(3, "")
    assert lines(any_conn) == [("a", kept)]
    assert store.sweep_waits(any_conn, queue.tables, limit=100) == WaitsSweep(0, "")


def test_the_sweep_of_the_lines_goes_on_where_it_stopped(any_conn: sa.Connection, queue: Queue) -> None:
    for key in "abcde":
        add(any_conn, queue, mutex_keys=[key])
    run(any_conn, "DELETE FROM sqlane_jobs")
    after, sweeps = "", []
    for _ in range(3):
        sweep = store.sweep_waits(any_conn, queue.tables, limit=2, after_key=after)
        after = sweep.after_key
        sweeps.append(tuple(sweep))
    assert sweeps == [(2, "b"), (2, "d"), (1, "")]
    assert lines(any_conn) == []


def test_a_sweep_of_the_lines_takes_no_place_of_a_job_enqueued_meanwhile(engine: sa.Engine, queue: Queue) -> None:
    with engine.connect() as one, engine.connect() as two:
        ids = add_many(one, queue, 3, mutex_keys=["k"])
        assert store.sweep_waits(two, queue.tables, limit=100).deleted == 0
        one.commit()
        assert store.sweep_waits(two, queue.tables, limit=100).deleted == 0
        assert [id for _, id in lines(two)] == ids
        assert candidates(two, queue) == ids[:1]


@pytest.mark.parametrize("n", [1, 3])
def test_sleepers_that_died_asleep(any_conn: sa.Connection, queue: Queue, n: int) -> None:
    for i in range(n):
        store.fall_asleep(any_conn, queue.tables, worker_id=f"dead-{i}", duration=0)
    store.fall_asleep(any_conn, queue.tables, worker_id="live", duration=60)
    assert store.sweep_sleepers(any_conn, queue.tables) == n
    assert rows(any_conn, "SELECT worker_id FROM sqlane_sleepers") == ["live"]
    assert store.sweep_sleepers(any_conn, queue.tables) == 0
