"""One life of a job on every driver: each step through the public face or the main store operations, in one table.

What each operation has to do is in tests/store, also on every driver; here is that they fit together.
"""

from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Enqueued, Queue, store
from sqlane_sa.values.job import ClaimedJob


@pytest.fixture(autouse=True)
def names(queue: Queue) -> None:
    queue.define("plain")
    queue.define("keyed", mutex_keys=lambda payload: [payload["key"]], failure_job="plain")


def status(conn: sa.Connection, queue: Queue, id: str) -> str | None:
    job = queue.get(conn, id)
    return job and job.status


def start(conn: sa.Connection, queue: Queue, token: str) -> list[ClaimedJob]:
    """What a worker does in a round."""
    names = [name for name, delay_ms in store.probe(conn, queue.tables) if delay_ms <= 0]
    found = store.find_candidates(conn, queue.tables, limits_by_name=dict.fromkeys(names, 10))
    return store.claim(conn, queue.tables, candidate_ids=found, lock_token=token, locked_by="w", lease=60)


def figures(conn: sa.Connection, queue: Queue) -> dict[str, tuple[int, ...]]:
    return {name: (s.pending, s.due, s.running, s.failed) for name, s in queue.stats(conn).items()}


def test_a_job_completes(any_conn: sa.Connection, queue: Queue) -> None:
    id, created = queue.enqueue(any_conn, "keyed", {"key": "é", "n": [1.5, None]})
    assert created
    assert figures(any_conn, queue) == {"keyed": (1, 1, 0, 0)}
    [job] = start(any_conn, queue, "t1")
    assert (job.id, job.name, list(job.mutex_keys or ()), job.attempt) == (id, "keyed", ["é"], 1)
    assert store.read_payloads(any_conn, queue.tables, ids=[id]) == {id: {"key": "é", "n": [1.5, None]}}
    assert figures(any_conn, queue) == {"keyed": (0, 0, 1, 0)}
    assert list(store.renew_leases(any_conn, queue.tables, jobs=[job], lease=60)) == [id]
    assert list(store.complete(any_conn, queue.tables, jobs=[job])) == [id]
    assert status(any_conn, queue, id) == "completed"
    assert figures(any_conn, queue) == {}


def test_a_job_is_retried_and_then_fails(any_conn: sa.Connection, queue: Queue) -> None:
    id = queue.enqueue(any_conn, "keyed", {"key": "k"}).id
    [job] = start(any_conn, queue, "t1")
    assert store.retry(any_conn, queue.tables, job=job, delay=0, error={"message": "é\n"})
    [job] = start(any_conn, queue, "t2")
    assert job.attempt == 2
    failure = queue.build_failure_job
    result = store.fail(any_conn, queue.tables, job=job, error={"message": "last"}, build_failure_job=failure)
    assert result.failure_job_id is not None
    failed, reaction = queue.get(any_conn, id), queue.get(any_conn, result.failure_job_id)
    assert failed and reaction
    assert (failed.status, failed.attempts, failed.last_error) == ("failed", 2, {"message": "last"})
    assert (reaction.name, reaction.payload["id"], reaction.payload["payload"]) == ("plain", id, {"key": "k"})
    assert figures(any_conn, queue) == {"keyed": (0, 0, 0, 1), "plain": (1, 1, 0, 0)}


def test_a_job_is_released_and_a_lost_lease_changes_nothing(any_conn: sa.Connection, queue: Queue) -> None:
    id = queue.enqueue(any_conn, "plain").id
    [job] = start(any_conn, queue, "t1")
    assert store.release(any_conn, queue.tables, job=job, delay=60)
    assert start(any_conn, queue, "t2") == []
    assert list(store.complete(any_conn, queue.tables, jobs=[job])) == []
    assert list(store.renew_leases(any_conn, queue.tables, jobs=[job], lease=60)) == []
    assert status(any_conn, queue, id) == "pending"
    assert figures(any_conn, queue) == {"plain": (1, 0, 0, 0)}


def test_enqueue_with_every_option(any_conn: sa.Connection, queue: Queue) -> None:
    options: dict[str, Any] = {"delay": 60, "priority": -5, "mutex_keys": ["b", "a"], "max_attempts": 9, "id": "ä"}
    assert queue.enqueue(any_conn, "plain", {"a": "\\u0000"}, **options) == Enqueued("ä", True)
    job = queue.get(any_conn, "ä")
    assert job is not None
    assert (job.payload, job.priority, job.mutex_keys, job.max_attempts) == ({"a": "\\u0000"}, -5, ("a", "b"), 9)
    assert queue.enqueue(any_conn, "plain", None, **options) == Enqueued("ä", False)


def test_a_batch_of_three_chunks(any_conn: sa.Connection, queue: Queue) -> None:
    results = queue.enqueue_many(any_conn, (queue.new("plain", i) for i in range(5000)))
    assert len({one.id for one in results}) == 5000
    some = results[::500]
    read = store.read_payloads(any_conn, queue.tables, ids=[one.id for one in some])
    assert [read[one.id] for one in some] == list(range(0, 5000, 500))
    assert figures(any_conn, queue) == {"plain": (5000, 5000, 0, 0)}


def test_a_savepoint(any_conn: sa.Connection, queue: Queue) -> None:
    savepoint = any_conn.begin_nested()
    lost = queue.enqueue(any_conn, "plain")
    savepoint.rollback()
    kept = queue.enqueue(any_conn, "plain")
    assert queue.get(any_conn, lost.id) is None
    assert status(any_conn, queue, kept.id) == "pending"
