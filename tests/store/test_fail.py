"""fail: the end for good, and the failure job in the same transaction."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import FailResult
from sqlane_sa.values.job import FailedJob, NewJob
from tests.store.races import committed, rival
from tests.store.steps import about, add, holds, job_row, lines, rows, run, running

ERROR = {"type": "ValueError", "message": "no"}


def fail(conn: sa.Connection, queue: Queue, job: Any, build: Callable[[FailedJob], Any] | None = None) -> FailResult:
    return store.fail(conn, queue.tables, job=job, error=ERROR, build_failure_job=build or queue.build_failure_job)


def failing(conn: sa.Connection, queue: Queue, payload: Any = None, **options: Any) -> Any:
    """A running job with a key that names a failure job."""
    queue.define("n", failure_job="sorry", mutex_keys=["k"], **options)
    return running(conn, queue, "n", payload)


def test_a_failed_job(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("n", failed_retention=100, mutex_keys=["a", "b"], max_attempts=9)
    job = running(any_conn, queue, "n", {"a": 1})
    assert fail(any_conn, queue, job) == FailResult(True, None, None)
    row = job_row(any_conn, job.id)
    assert (row["status"], row["attempts"], row["stalls"], row["last_error"]) == ("failed", 1, 0, ERROR)
    assert (row["finished_at"], row["expires_at"]) == (about(0), about(100))
    assert [row[name] for name in ("lock_token", "locked_by", "locked_until")] == [None] * 3
    assert (holds(any_conn), lines(any_conn)) == ({}, [])
    assert store.read_payloads(any_conn, queue.tables, ids=[job.id]) == {job.id: {"a": 1}}
    assert fail(any_conn, queue, job) == FailResult(False, None, None)


def test_the_keys_may_be_left_lingering(any_conn: sa.Connection, queue: Queue) -> None:
    """Its handler still runs; the failure job, and whoever else wants the key, waits for its end."""
    job = failing(any_conn, queue)
    assert store.fail(any_conn, queue.tables, job=job, error=ERROR, linger=45).changed
    assert holds(any_conn) == {"k": (job.id, True)}
    ends = "SELECT extract(epoch FROM held_until - statement_timestamp()) FROM sqlane_mutexes"
    assert rows(any_conn, ends) == [about(45)]


@pytest.mark.parametrize(("retention", "left", "expires"), [(0, 0, []), (None, 1, [None])])
def test_a_retention_of_nothing_and_for_ever(
    any_conn: sa.Connection, queue: Queue, retention: float | None, left: int, expires: list[None]
) -> None:
    queue.define("n", failed_retention=retention, mutex_keys=["k"])
    job = running(any_conn, queue, "n")
    assert fail(any_conn, queue, job).changed
    assert rows(any_conn, "SELECT expires_at FROM sqlane_jobs") == expires
    assert rows(any_conn, "SELECT count(*) FROM sqlane_payloads") == [left]
    assert holds(any_conn) == {}


@pytest.mark.parametrize("retention", [0, 100])
def test_the_failure_job_gets_the_facts(any_conn: sa.Connection, queue: Queue, retention: float) -> None:
    job = failing(any_conn, queue, {"order": 7}, max_attempts=6, failed_retention=retention)
    seen: list[FailedJob] = []

    def build(failed: FailedJob) -> NewJob:
        seen.append(failed)
        return queue.build_failure_job(failed)

    result = fail(any_conn, queue, job, build)
    assert seen == [
        FailedJob(
            id=job.id, name="n", payload={"order": 7}, attempt=1, max_attempts=6, failure_job="sorry", error=ERROR
        )
    ]
    assert (result.changed, result.failure_job_error) == (True, None)
    added = store.get(any_conn, queue.tables, id=result.failure_job_id or "")
    assert added is not None
    assert (added.name, added.status, added.payload["payload"], added.payload["error"]) == (
        "sorry",
        "pending",
        {"order": 7},
        ERROR,
    )


def test_without_a_builder_or_a_failure_job_none_is_added(any_conn: sa.Connection, queue: Queue) -> None:
    queue.define("silent", failure_job="sorry")
    one, two = running(any_conn, queue, "silent"), running(any_conn, queue, "n")
    assert store.fail(any_conn, queue.tables, job=one, error=ERROR) == FailResult(True, None, None)
    assert fail(any_conn, queue, two) == FailResult(True, None, None)
    assert rows(any_conn, "SELECT count(*) FROM sqlane_jobs") == [2]


def test_a_builder_may_want_no_job(any_conn: sa.Connection, queue: Queue) -> None:
    assert fail(any_conn, queue, failing(any_conn, queue), lambda failed: None) == FailResult(True, None, None)


def test_a_stale_token_adds_no_failure_job(any_conn: sa.Connection, queue: Queue) -> None:
    job = failing(any_conn, queue)
    store.retry(any_conn, queue.tables, job=job)
    assert fail(any_conn, queue, job) == FailResult(False, None, None)
    assert rows(any_conn, "SELECT count(*) FROM sqlane_jobs") == [1]


def raising(failed: FailedJob) -> NewJob:
    raise ZeroDivisionError("x" * 5000)


def wrong(queue: Queue, **facts: Any) -> Callable[[FailedJob], NewJob]:
    return lambda failed: replace(queue.build_failure_job(failed), **facts)


BUILDERS: dict[str, Callable[[Queue], Callable[[FailedJob], Any]]] = {
    "raises": lambda queue: raising,
    "payload no JSON": lambda queue: wrong(queue, payload="{"),
    "NUL": lambda queue: wrong(queue, name="a\0b"),
    "lone surrogate": lambda queue: wrong(queue, payload='"\ud800"'),
    "no name": lambda queue: wrong(queue, name=None),
    "priority": lambda queue: wrong(queue, priority=10**6),
    "no job": lambda queue: lambda failed: "no job",
}


@pytest.mark.parametrize("how", BUILDERS)
def test_a_failure_job_that_cannot_be_added_still_lets_the_job_fail(
    any_conn: sa.Connection, queue: Queue, how: str
) -> None:
    job = failing(any_conn, queue)
    result = fail(any_conn, queue, job, BUILDERS[how](queue))
    assert (result.changed, result.failure_job_id) == (True, None)
    assert 0 < len(result.failure_job_error or "") <= 1000
    assert rows(any_conn, "SELECT id, status FROM sqlane_jobs") == [(job.id, "failed")]
    assert holds(any_conn) == {}
    add(any_conn, queue, "n")


def trigger(conn: sa.Connection, code: str) -> None:
    run(
        conn,
        f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END $$""",
    )
    run(
        conn,
        """CREATE TRIGGER refuse BEFORE INSERT ON sqlane_jobs FOR EACH ROW WHEN (new.job_name = 'sorry')
        EXECUTE FUNCTION refuse()""",
    )


@pytest.mark.parametrize("code", ["P0001", "23514", "42501", "54000"])
def test_a_trigger_that_refuses_the_failure_job(any_conn: sa.Connection, queue: Queue, code: str) -> None:
    job = failing(any_conn, queue)
    trigger(any_conn, code)
    result = fail(any_conn, queue, job)
    assert (result.changed, result.failure_job_id) == (True, None)
    assert "refused" in (result.failure_job_error or "")
    assert job_row(any_conn, job.id)["status"] == "failed"


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014", "53100", "08006"])
def test_an_outage_is_no_reason_to_lose_the_failure_job(any_conn: sa.Connection, queue: Queue, code: str) -> None:
    """The whole is to be repeated, with every driver."""
    job = failing(any_conn, queue)
    trigger(any_conn, code)
    outer = any_conn.begin_nested()
    with pytest.raises(sa.exc.DBAPIError, match="refused"):
        fail(any_conn, queue, job)
    outer.rollback()
    assert job_row(any_conn, job.id)["status"] == "running"


def test_a_lost_connection_is_no_reason_either_whatever_its_error(conn: sa.Connection, queue: Queue) -> None:
    """Drivers have many for it, with a code or without."""

    def lose(failed: FailedJob) -> NewJob:
        raise sa.exc.DatabaseError("refused", {}, Exception("gone"), connection_invalidated=True)

    job = failing(conn, queue)
    with pytest.raises(sa.exc.DatabaseError, match="gone"):
        fail(conn, queue, job, lose)


def test_a_lost_connection_is_raised(engine: sa.Engine, queue: Queue) -> None:
    def end_session(failed: FailedJob) -> NewJob:
        with engine.connect() as other:
            run(other, "SELECT pg_terminate_backend(:pid)", pid=pid)
        return queue.build_failure_job(failed)

    job = committed(engine, lambda conn: failing(conn, queue))
    with engine.connect() as conn:
        pid = rows(conn, "SELECT pg_backend_pid()")[0]
        with pytest.raises(sa.exc.OperationalError):
            fail(conn, queue, job, end_session)
    with engine.connect() as conn:
        assert rows(conn, "SELECT status FROM sqlane_jobs") == ["running"]


def test_the_failure_job_and_the_failure_are_one_transaction(engine: sa.Engine, queue: Queue) -> None:
    job = committed(engine, lambda conn: failing(conn, queue))
    with engine.connect() as conn:
        fail(conn, queue, job)
        conn.rollback()
        assert rows(conn, "SELECT job_name, status FROM sqlane_jobs") == [("n", "running")]
        fail(conn, queue, job)
        conn.commit()
        assert rows(conn, "SELECT job_name, status FROM sqlane_jobs ORDER BY id") == [
            ("n", "failed"),
            ("sorry", "pending"),
        ]


def test_two_that_fail_one_job_add_one_failure_job(engine: sa.Engine, queue: Queue) -> None:
    job = committed(engine, lambda conn: failing(conn, queue))
    with engine.connect() as one:
        assert fail(one, queue, job).failure_job_id
        with rival(engine, lambda conn: fail(conn, queue, job)) as result:
            one.commit()
        assert result.result() == FailResult(False, None, None)
        assert rows(one, "SELECT count(*) FROM sqlane_jobs WHERE job_name = 'sorry'") == [1]


def test_a_payload_that_nobody_can_read_reaches_the_builder_as_none(any_conn: sa.Connection, queue: Queue) -> None:
    job = failing(any_conn, queue)
    run(any_conn, "UPDATE sqlane_payloads SET payload = CAST(:text AS json)", text="9" * 5000)
    result = fail(any_conn, queue, job)
    added = store.get(any_conn, queue.tables, id=result.failure_job_id or "")
    assert added is not None
    assert added.payload["payload"] is None
