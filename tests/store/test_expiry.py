"""delete_expired: finished jobs past their retention, in batches that processes share."""

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.races import committed
from tests.store.steps import add, add_many, claim, rows, run, running

EXPIRE = "UPDATE sqlane_jobs SET expires_at = statement_timestamp() - interval '1 ms'"


def finished(conn: sa.Connection, queue: Queue, n: int) -> list[str]:
    """Half of them completed, half failed, all expired."""
    jobs = claim(conn, queue, *add_many(conn, queue, n))
    store.complete(conn, queue.tables, jobs=jobs[::2])
    for job in jobs[1::2]:
        store.fail(conn, queue.tables, job=job, error={})
    run(conn, EXPIRE)
    return [job.id for job in jobs]


def test_only_finished_jobs_past_their_time(any_conn: sa.Connection, queue: Queue) -> None:
    finished(any_conn, queue, 4)
    live = [add(any_conn, queue), running(any_conn, queue).id]
    run(any_conn, EXPIRE)
    queue.define("kept", completed_retention=None)
    kept = [running(any_conn, queue, name) for name in ("n", "kept")]
    store.complete(any_conn, queue.tables, jobs=kept)
    assert store.delete_expired(any_conn, queue.tables, limit=100) == 4
    assert rows(any_conn, "SELECT id FROM sqlane_jobs ORDER BY id") == [*live, *sorted(job.id for job in kept)]
    assert rows(any_conn, "SELECT id FROM sqlane_payloads ORDER BY id") == live
    assert store.delete_expired(any_conn, queue.tables, limit=100) == 0


def test_the_oldest_first_and_at_most_the_limit(any_conn: sa.Connection, queue: Queue) -> None:
    ids = finished(any_conn, queue, 5)
    back = "UPDATE sqlane_jobs SET expires_at = expires_at - CAST(:i AS int) * interval '1 s' WHERE id = :id"
    for i, id in enumerate(ids):
        run(any_conn, back, i=i, id=id)
    assert store.delete_expired(any_conn, queue.tables, limit=2) == 2
    assert rows(any_conn, "SELECT id FROM sqlane_jobs ORDER BY id") == ids[:3]
    assert [store.delete_expired(any_conn, queue.tables, limit=2) for _ in range(3)] == [2, 1, 0]
    assert rows(any_conn, "SELECT count(*) FROM sqlane_payloads") == [0]


def test_two_at_once_share_the_work(engine: sa.Engine, queue: Queue) -> None:
    committed(engine, lambda conn: finished(conn, queue, 30))
    with engine.connect() as one, engine.connect() as two:
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert store.delete_expired(one, queue.tables, limit=20) == 20
        assert store.delete_expired(two, queue.tables, limit=20) == 10
        assert store.delete_expired(two, queue.tables, limit=20) == 0
        one.commit()
        two.commit()
        assert rows(one, "SELECT (SELECT count(*) FROM sqlane_jobs), (SELECT count(*) FROM sqlane_payloads)") == [
            (0, 0)
        ]


@pytest.mark.parametrize("off", [(), ("hashjoin", "mergejoin", "hashagg", "material", "sort")])
def test_never_more_than_asked(conn: sa.Connection, queue: Queue, off: tuple[str, ...]) -> None:
    finished(conn, queue, 100)
    for method in off:
        conn.exec_driver_sql(f"SET LOCAL enable_{method} = off")
    assert store.delete_expired(conn, queue.tables, limit=3) == 3
    assert rows(conn, "SELECT count(*) FROM sqlane_jobs") == [97]
