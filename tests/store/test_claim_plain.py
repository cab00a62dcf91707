"""claim_plain: the first due jobs without keys of each lane, in one statement."""

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import INLINE_BYTES
from tests.store.steps import about, add, add_many, age, ids_of, job_row, rows, running, statements


def start(conn: sa.Connection, queue: Queue, *lanes: tuple[str, int, int], token: str = "t") -> list:
    return store.claim_plain(conn, queue.tables, lanes=lanes, lock_token=token, locked_by="worker-1", lease=40)


def test_a_started_job_brings_its_payload(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", max_attempts=7, max_stalls=4, failure_job="sorry", priority=2)
    id = add(any_conn, queue, "n", {"a": [1, "é"]})
    age(any_conn, id, 5)
    [job] = start(any_conn, queue, ("n", 2, 10))
    assert (job.id, job.name, job.attempt, job.max_attempts, job.max_stalls) == (id, "n", 1, 7, 4)
    assert (job.failure_job, job.mutex_keys, job.priority, job.lock_token) == ("sorry", None, 2, "t")
    assert job.payload_text == '{"a":[1,"é"]}'
    assert 5000 <= job.waited_ms < 60_000
    row = job_row(any_conn, id)
    assert (row["status"], row["lock_token"], row["locked_by"]) == ("running", "t", "worker-1")
    assert row["locked_until"] == about(40)


def test_a_large_payload_stays_where_it_is(any_conn: sa.Connection, queue: Queue) -> None:
    sizes = [INLINE_BYTES, INLINE_BYTES + 1]
    for size in sizes:
        add(any_conn, queue, "n", "é" + "x" * (size - 4))
    texts = [job.payload_text for job in start(any_conn, queue, ("n", 0, 10))]
    assert [text and len(text.encode()) for text in texts] == [INLINE_BYTES, None]


def test_at_most_the_limit_of_each_lane_best_first(any_conn: sa.Connection, queue: Queue) -> None:
    b = add_many(any_conn, queue, 3, "b")
    a = add_many(any_conn, queue, 3, "a")
    urgent = add(any_conn, queue, "b", priority=-1)
    add(any_conn, queue, "c")
    with statements(any_conn) as sent:
        started = start(any_conn, queue, ("a", 0, 2), ("b", 0, 1), ("b", -1, 5), ("unknown", 0, 5), ("a", 9, 5))
    assert ids_of(started) == [urgent, b[0], *a[:2]]
    assert len(sent) == 1
    assert start(any_conn, queue) == []
    assert start(any_conn, queue, ("a", 0, 0)) == []


def test_only_due_pending_jobs_without_keys(any_conn: sa.Connection, queue: Queue) -> None:
    add(any_conn, queue, delay=60)
    add(any_conn, queue, mutex_keys=["k"])
    taken = running(any_conn, queue)
    id = add(any_conn, queue)
    assert ids_of(start(any_conn, queue, ("n", 0, 10))) == [id]
    assert start(any_conn, queue, ("n", 0, 10)) == []
    assert job_row(any_conn, taken.id)["lock_token"] == taken.lock_token


def test_a_job_whose_payload_is_gone_still_starts(any_conn: sa.Connection, queue: Queue) -> None:
    id = add(any_conn, queue)
    any_conn.execute(sa.text("DELETE FROM sqlane_payloads"))
    assert [(job.id, job.payload_text) for job in start(any_conn, queue, ("n", 0, 1))] == [(id, None)]


def test_a_row_that_another_transaction_holds_is_skipped(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        ids = add_many(conn, queue, 3)
    with engine.connect() as one, engine.connect() as two:
        assert ids_of(start(one, queue, ("n", 0, 2))) == ids[:2]
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert ids_of(start(two, queue, ("n", 0, 2))) == ids[2:]
        one.rollback()
        assert ids_of(start(two, queue, ("n", 0, 2))) == ids[:2]
        assert rows(two, "SELECT count(*) FROM sqlane_jobs WHERE status = 'running'") == [3]
