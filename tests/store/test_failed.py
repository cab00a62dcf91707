"""Failed jobs: listed, counted, and set back to pending."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.statement import Statement
from sqlane_sa.store.failed import COUNT_FAILED, FAILED_IDS, RETRY_FAILED
from tests.store.races import committed
from tests.store.steps import add, add_many, candidates, claim, job_row, lines, plan, rows, run, running, status
from tests.wakeups import Heard


def failed(conn: sa.Connection, queue: Queue, name: str = "n", ago: float = 0, **options: object) -> str:
    """A job that failed for good so many seconds ago."""
    job = running(conn, queue, name, [1], **options)
    assert store.fail(conn, queue.tables, job=job, error=ValueError(f"of {name}")).changed
    back = "UPDATE sqlane_jobs SET finished_at = finished_at - make_interval(secs => :ago) WHERE id = :id"
    run(conn, back, id=job.id, ago=ago)
    return job.id


def test_they_are_listed_with_the_last_to_fail_first(any_conn: sa.Connection, queue: Queue) -> None:
    old, new, middle = (failed(any_conn, queue, name, ago) for name, ago in (("a", 60), ("b", 1), ("a", 30)))
    add(any_conn, queue, "a")
    running(any_conn, queue, "a", token="t2")
    found = store.find_failed(any_conn, queue.tables, limit=9)
    assert [one.id for one in found] == [new, middle, old]
    assert (found[0].name, found[0].attempts, found[0].max_attempts, found[0].stalls) == ("b", 1, 5, 0)
    assert (found[0].last_error["type"], found[0].last_error["message"]) == ("ValueError", "of b")
    assert found[2].age_ms is not None and found[2].age_ms >= 60_000
    assert [one.id for one in store.find_failed(any_conn, queue.tables, limit=1)] == [new]
    assert [one.id for one in store.find_failed(any_conn, queue.tables, limit=9, names=["a", "c"])] == [middle, old]
    assert store.find_failed(any_conn, queue.tables, limit=9, names=[]) == []


def test_odd_rows_are_listed_too(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [failed(any_conn, queue) for _ in range(3)]
    change = "UPDATE sqlane_jobs SET finished_at = {}, last_error = {} WHERE id = :id"
    for id_, finished, error in zip(ids, ("NULL", "'infinity'", "'-infinity'"), ("NULL", "'[1]'", "'3'"), strict=True):
        run(any_conn, change.format(finished, error), id=id_)
    found = store.find_failed(any_conn, queue.tables, limit=9)
    assert [(one.id, one.last_error) for one in found] == [(ids[1], [1]), (ids[2], 3), (ids[0], None)]


def test_ids_come_in_batches(any_conn: sa.Connection, queue: Queue) -> None:
    first, second, third = (failed(any_conn, queue) for _ in range(3))
    failed(any_conn, queue, "other")
    assert store.failed_ids(any_conn, queue.tables, name="n", limit=2) == [first, second]
    assert store.failed_ids(any_conn, queue.tables, name="n", limit=2, after_id=second) == [third]


def test_those_of_late_are_counted_by_name(any_conn: sa.Connection, queue: Queue) -> None:
    for name, ago in (("b", 0), ("a", 59), ("b", 7200), ("a", 0), ("c", 3601)):
        failed(any_conn, queue, name, ago)
    assert store.count_failed(any_conn, queue.tables, within=3600, limit=9) == [("a", 2), ("b", 1)]
    assert store.count_failed(any_conn, queue.tables, within=3600, limit=1) == [("a", 1)]


def test_a_failed_job_starts_again_with_all_its_attempts(any_conn: sa.Connection, queue: Queue) -> None:
    id_ = failed(any_conn, queue, max_attempts=2)
    run(any_conn, "UPDATE sqlane_jobs SET stalls = 3, run_at = run_at - interval '1 h' WHERE id = :id", id=id_)
    assert store.retry_failed(any_conn, queue.tables, ids=[id_, "unknown"]) == [id_]
    row = job_row(any_conn, id_)
    assert (row["status"], row["attempts"], row["stalls"], row["max_attempts"]) == ("pending", 0, 0, 2)
    assert (row["started_at"], row["finished_at"], row["expires_at"], row["lock_token"]) == (None,) * 4
    assert -60 < row["run_at"] <= 0
    assert row["last_error"]["message"] == "of n"
    assert store.retry_failed(any_conn, queue.tables, ids=[id_]) == []
    [job] = claim(any_conn, queue, id_, token="again")
    assert (job.attempt, store.read_payloads(any_conn, queue.tables, ids=[id_])[id_]) == (1, [1])
    assert store.complete(any_conn, queue.tables, jobs=[job]) == [id_]


def test_only_what_failed(any_conn: sa.Connection, queue: Queue) -> None:
    pending, running_, done = add(any_conn, queue), running(any_conn, queue), running(any_conn, queue, token="t2")
    store.complete(any_conn, queue.tables, jobs=[done])
    ids = [pending, running_.id, done.id]
    assert store.retry_failed(any_conn, queue.tables, ids=ids) == []
    assert store.retry_failed(any_conn, queue.tables, ids=[]) == []
    assert [status(any_conn, id_) for id_ in ids] == ["pending", "running", "completed"]


def test_the_old_lock_changes_nothing_any_more(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue)
    store.fail(any_conn, queue.tables, job=job, error="no")
    store.retry_failed(any_conn, queue.tables, ids=[job.id])
    claim(any_conn, queue, job.id, token="token-2")
    assert store.complete(any_conn, queue.tables, jobs=[job]) == []
    assert not store.fail(any_conn, queue.tables, job=job, error="late").changed
    assert status(any_conn, job.id) == "running"


def test_it_is_the_last_in_the_lines_of_its_keys(any_conn: sa.Connection, queue: Queue) -> None:
    id_ = failed(any_conn, queue, mutex_keys=["b", "a"])
    other = add(any_conn, queue, mutex_keys=["a"])
    run(any_conn, "SELECT pg_sleep(0.002)")  # a time is in whole milliseconds
    assert store.retry_failed(any_conn, queue.tables, ids=[id_]) == [id_]
    assert lines(any_conn) == [("a", other), ("a", id_), ("b", id_)]
    assert rows(any_conn, "SELECT count(*) FROM sqlane_waits AS w NATURAL JOIN sqlane_jobs AS j(job_id)") == [3]
    assert candidates(any_conn, queue) == [other]
    store.complete(any_conn, queue.tables, jobs=claim(any_conn, queue, other))
    assert candidates(any_conn, queue) == [id_]


def test_a_key_that_lingers_holds_it_back(any_conn: sa.Connection, queue: Queue) -> None:
    """After the last stall its old handler may still run."""
    job = running(any_conn, queue, mutex_keys=["k"])
    run(any_conn, "UPDATE sqlane_jobs SET stalls = max_stalls, locked_until = now() - interval '1 s'")
    assert store.recover_stale(any_conn, queue.tables, id=job.id, lease=60).status == "failed"
    assert store.retry_failed(any_conn, queue.tables, ids=[job.id]) == [job.id]
    assert candidates(any_conn, queue) == []


def test_two_at_once_share_the_work(engine: sa.Engine, queue: Queue) -> None:
    """Neither waits, and no job is set back twice."""
    ids = committed(engine, lambda conn: [failed(conn, queue) for _ in range(2)])
    with engine.begin() as one, engine.begin() as two:
        assert store.retry_failed(one, queue.tables, ids=ids[:1]) == ids[:1]
        assert store.retry_failed(two, queue.tables, ids=ids) == ids[1:]


def test_a_sweep_that_meets_it_deletes_nothing(engine: sa.Engine, queue: Queue) -> None:
    id_ = committed(engine, lambda conn: failed(conn, queue))
    with engine.begin() as conn:
        run(conn, "UPDATE sqlane_jobs SET expires_at = now() - interval '1 s'")
    with engine.begin() as one, engine.begin() as two:
        store.retry_failed(one, queue.tables, ids=[id_])
        assert store.delete_expired(two, queue.tables, limit=9) == 0
    with engine.begin() as conn:
        assert store.delete_expired(conn, queue.tables, limit=9) == 0
        assert status(conn, id_) == "pending"


def test_a_sleeping_worker_is_woken(engine: sa.Engine, queue: Queue, heard: Heard, asleep: None) -> None:
    id_ = committed(engine, lambda conn: failed(conn, queue))
    heard()
    committed(engine, lambda conn: store.retry_failed(conn, queue.tables, ids=[id_]))
    assert heard() == 1


@pytest.mark.parametrize(
    ("statement", "parameters", "index"),
    [
        (COUNT_FAILED, {"max_rows": 9, "within_ms": 9}, "sqlane_jobs_failed"),
        (FAILED_IDS, {"name": "n", "after_id": "", "max_rows": 9}, "sqlane_jobs_failed"),
        (RETRY_FAILED, {"ids": ["a", "b"], "channel": "c"}, "sqlane_jobs_pkey"),
    ],
    ids=["count", "ids", "retry"],
)
def test_by_index(
    conn: sa.Connection, queue: Queue, statement: Statement, parameters: dict[str, Any], index: str
) -> None:
    """Among many that failed and did not, and whatever the statistics say."""
    add_many(conn, queue, 1000)
    run(conn, "UPDATE sqlane_jobs SET status = 'failed' WHERE id = (SELECT min(id) FROM sqlane_jobs)")
    run(conn, "ANALYZE sqlane_jobs")
    store.pin_plans(conn)
    nodes = plan(conn, str(statement.on(queue.tables)), parameters)
    used = {node["Index Name"] for node in nodes if node.get("Relation Name") == "sqlane_jobs" and "Index Name" in node}
    assert used == {index}
    assert "Seq Scan" not in {node["Node Type"] for node in nodes if node.get("Relation Name") == "sqlane_jobs"}
