"""get and stats."""

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store.inspect import STATS
from sqlane_sa.values.job import NameStats
from tests.store.steps import add, age, plan, run, running


def test_get_a_job(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", priority=3, max_attempts=7, max_stalls=2, failure_job="sorry", mutex_keys=["b", "a"])
    run_at = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    id = add(any_conn, queue, "n", {"a": 1}, run_at=run_at)
    job = store.get(any_conn, queue.tables, id=id)
    assert job is not None
    assert (job.id, job.name, job.status, job.priority, job.run_at) == (id, "n", "pending", 3, run_at)
    assert (job.attempts, job.max_attempts, job.stalls, job.max_stalls) == (0, 7, 0, 2)
    assert (job.mutex_keys, job.failure_job, job.payload, job.payload_error) == (("a", "b"), "sorry", {"a": 1}, None)
    assert (job.lock_token, job.locked_by, job.locked_until, job.started_at, job.last_error) == (None,) * 5
    assert job.created_at.tzinfo is not None
    assert store.get(any_conn, queue.tables, id="unknown") is None


def test_get_a_job_in_each_state(any_conn: sa.Connection, queue: Queue) -> None:
    job = running(any_conn, queue, payload=[1])
    found = store.get(any_conn, queue.tables, id=job.id)
    assert found is not None
    assert (found.status, found.lock_token, found.locked_by) == ("running", job.lock_token, "worker-1")
    store.fail(any_conn, queue.tables, job=job, error={"message": "é", "n": [1.5, None]})
    found = store.get(any_conn, queue.tables, id=job.id)
    assert found is not None
    assert (found.status, found.last_error, found.payload) == ("failed", {"message": "é", "n": [1.5, None]}, [1])
    done = running(any_conn, queue, payload=[1])
    store.complete(any_conn, queue.tables, jobs=[done])
    found = store.get(any_conn, queue.tables, id=done.id)
    assert found is not None
    assert (found.status, found.payload, found.payload_error) == ("completed", None, None)


def test_get_a_job_whose_payload_cannot_be_decoded(any_conn: sa.Connection, queue: Queue) -> None:
    id = add(any_conn, queue)
    run(any_conn, "UPDATE sqlane_payloads SET payload = CAST(:text AS json)", text="9" * 5000)
    job = store.get(any_conn, queue.tables, id=id)
    assert job is not None
    assert job.payload is None
    assert "cannot be decoded" in (job.payload_error or "")


def test_the_figures_of_each_name(any_conn: sa.Connection, queue: Queue) -> None:
    assert store.stats(any_conn, queue.tables) == {}
    add(any_conn, queue, "a", delay=60)
    age(any_conn, add(any_conn, queue, "a"), 10)
    age(any_conn, add(any_conn, queue, "a", mutex_keys=["k"]), 30)
    add(any_conn, queue, "a", mutex_keys=["l"], delay=60)
    running(any_conn, queue, "a")
    store.mark_timed_out(any_conn, queue.tables, jobs=[running(any_conn, queue, "a")])
    store.fail(any_conn, queue.tables, job=running(any_conn, queue, "b"), error={})
    store.complete(any_conn, queue.tables, jobs=[running(any_conn, queue, "c")])
    add(any_conn, queue, "d", delay=60)
    stats = store.stats(any_conn, queue.tables)
    assert list(stats) == ["a", "b", "d"]
    assert stats["a"] == NameStats("a", 4, 2, 2, 1, 0, pytest.approx(30_000, abs=1000))
    assert stats["b"] == NameStats("b", 0, 0, 0, 0, 1, None)
    assert stats["d"] == NameStats("d", 1, 0, 0, 0, 0, None)


def test_the_figures_read_no_completed_rows(engine: sa.Engine, queue: Queue) -> None:
    with engine.begin() as conn:
        fill = """INSERT INTO sqlane_jobs (id, job_name, status, finished_at, expires_at)
            SELECT 'x' || i, 'n' || i % 5, 'completed', statement_timestamp(), statement_timestamp()
            FROM generate_series(1, 50000) AS i"""
        run(conn, fill)
        for i in range(200):
            add(conn, queue, f"n{i % 5}", mutex_keys=["k"] if i % 2 else None)
        store.fail(conn, queue.tables, job=running(conn, queue, "n1"), error={})
        running(conn, queue, "n2")
        conn.exec_driver_sql("ANALYZE")
    with engine.connect() as conn:
        nodes = plan(conn, STATS.on(queue.tables).element.text, {}, analyze=True)
        reads = [node for node in nodes if node.get("Relation Name") == "sqlane_jobs"]
        assert len(reads) == 4
        assert "Seq Scan" not in {node["Node Type"] for node in reads}
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in reads) == 202
        assert sum(node.get("Rows Removed by Filter", 0) for node in reads) == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_the_engines_own_json_functions_change_nothing(database_url: str, queue: Queue, driver: str) -> None:
    url = sa.make_url(database_url).set(drivername=f"postgresql+{driver}")
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, json_serializer=lambda value: b"bytes", json_deserializer=lambda text: "changed"
    )
    with engine.connect() as conn:
        job = running(conn, queue, payload={"a": 1})
        store.fail(conn, queue.tables, job=job, error={"message": "no"})
        found = store.get(conn, queue.tables, id=job.id)
        assert found is not None
        assert (found.payload, found.last_error) == ({"a": 1}, {"message": "no"})
