"""A trigger of the application's that meets an outage of its own for some rows: it is one for those, and no others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, Retry, Worker, store
from tests.support import wait_until

pytestmark = pytest.mark.slow

Read = Callable[[str], Job]

KINDS = {
    "table": "PERFORM FROM not_there",
    "state": "PERFORM currval('numbers')",
    "shutdown": "RAISE EXCEPTION 'no' USING ERRCODE = '57P01'",
    "right": "RAISE insufficient_privilege",
    "column": "NEW.not_there := 1",
    "connection": "RAISE EXCEPTION 'no' USING ERRCODE = '08001'",
    "resources": "RAISE EXCEPTION 'no' USING ERRCODE = '53300'",
    "internal": "RAISE EXCEPTION 'no' USING ERRCODE = 'XX000'",
}
REFUSALS = pytest.mark.parametrize("refusal", KINDS.values(), ids=KINDS)
SOME_REFUSALS = pytest.mark.parametrize("refusal", list(KINDS.values())[:3], ids=list(KINDS)[:3])
KEYS = pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])


@pytest.fixture
def ran(queue: Queue) -> list[Any]:
    """The payloads of the jobs that ended well."""
    ended: list[Any] = []
    queue.job("plain")(ended.append)
    queue.job("keyed", mutex_keys=lambda payload: [str(payload)])(ended.append)
    return ended


def refuse(sql: Any, condition: str, refusal: str) -> None:
    sql("CREATE SEQUENCE IF NOT EXISTS numbers")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF {condition} THEN {refusal}; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")


@REFUSALS
@KEYS
def test_a_claim_that_is_refused_for_one_row(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, job: Read, caplog: Any,
    keyed: bool, refusal: str,
) -> None:  # fmt: skip
    name = "keyed" if keyed else "plain"
    with engine.begin() as conn:
        ids = [one.id for one in queue.enqueue_many(conn, (queue.new(name, n) for n in range(30)))]
    refuse(sql, f"NEW.id = '{ids[7]}' AND NEW.status = 'running'", refusal)
    worker = work(concurrency=5)
    wait_until(lambda: len(ran) == 29)
    assert (job(ids[7]).status, job(ids[7]).attempts) == ("pending", 0)
    wait_until(lambda: f"job {ids[7]} cannot be claimed and is left alone" in caplog.text)
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    wait_until(lambda: job(ids[7]).status == "completed")
    assert worker.failure is None


@SOME_REFUSALS
@KEYS
@pytest.mark.parametrize("end", ["completed", "retried", "failed"])
def test_a_result_that_is_refused_waits_as_it_is(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, job: Read, caplog: Any,
    keyed: bool, refusal: str, end: str,
) -> None:  # fmt: skip
    """No other result in its place: what is refused for now may be taken later."""
    go = threading.Event()
    keys = ["odd"] if keyed else None

    @queue.job("odd", mutex_keys=keys, max_attempts=1 if end == "failed" else 2)
    def odd(payload: Any) -> None:
        assert go.wait(60)
        if end == "retried":
            raise Retry(3600)
        if end == "failed":
            raise ValueError("its own")

    with engine.begin() as conn:
        id_ = queue.enqueue(conn, "odd").id
    worker = work(concurrency=5, lease=60)
    wait_until(lambda: job(id_).status == "running")
    refuse(sql, f"NEW.id = '{id_}' AND NEW.status <> 'running'", refusal)
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("keyed" if keyed else "plain", n) for n in range(20)))
    go.set()
    wait_until(lambda: f"rows that the database refuses for now, the first for job {id_}" in caplog.text)
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("keyed" if keyed else "plain", n) for n in range(20, 30)))
    wait_until(lambda: len(ran) == 30)
    assert job(id_).status == "running"
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    wait_until(lambda: job(id_).status != "running")
    result = job(id_)
    assert (result.status, result.attempts) == ("pending" if end == "retried" else end, 1)
    if end == "failed":
        assert result.last_error is not None and result.last_error["message"] == "its own"
    assert worker.failure is None
    assert caplog.text.count("wait for rows that the database refuses for now") == 1


@KEYS
def test_claims_that_are_all_refused_are_an_outage(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, caplog: Any, keyed: bool
) -> None:
    """Said once, and not of each job; nothing is started or counted until it is over."""
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("keyed" if keyed else "plain", n) for n in range(300)))
    refuse(sql, "NEW.status = 'running'", "PERFORM FROM not_there")
    worker = work(concurrency=50)
    wait_until(lambda: "trying again until it works" in caplog.text)
    sql("CREATE TABLE not_there ()")
    wait_until(lambda: len(ran) == 300)
    wait_until(lambda: sql("SELECT DISTINCT status, attempts FROM sqlane_jobs") == [("completed", 1)])
    assert "cannot be claimed and is left alone" not in caplog.text
    assert caplog.text.count("trying again until it works") == 1
    assert worker.failure is None


@KEYS
def test_many_rows_that_are_refused_hold_up_none_behind_them(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, caplog: Any, keyed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """More than are looked at in one claim, so that at first it looks like an outage."""
    monkeypatch.setattr("sqlane_sa.worker.parts.LOOP_BACKOFF", 0.1)
    with engine.begin() as conn:
        name = "keyed" if keyed else "plain"
        odd = [one.id for one in queue.enqueue_many(conn, (queue.new(name, n) for n in range(12)))]
        queue.enqueue_many(conn, (queue.new(name, n) for n in range(12, 24)))
    refuse(sql, f"NEW.id <= '{odd[-1]}' AND NEW.status = 'running'", "PERFORM FROM not_there")
    worker = work(concurrency=2)
    wait_until(lambda: len(ran) == 12)
    wait_until(lambda: caplog.text.count("cannot be claimed and is left alone") == 12)
    sql("CREATE TABLE not_there ()")
    wait_until(lambda: len(ran) == 24)
    assert worker.failure is None


def test_a_lone_row_that_is_refused_holds_up_what_comes_later_no_more_than_once(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], enqueue: Any, sql: Any, caplog: Any
) -> None:
    """It may be an outage, until something else was claimed."""
    odd = enqueue("plain", "odd")
    refuse(sql, f"NEW.id = '{odd}' AND NEW.status = 'running'", "PERFORM FROM not_there")
    worker = work()
    wait_until(lambda: "trying again until it works" in caplog.text)
    enqueue("plain", "later")
    wait_until(lambda: ran == ["later"])
    wait_until(lambda: f"job {odd} cannot be claimed and is left alone" in caplog.text)
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    wait_until(lambda: ran == ["later", "odd"])
    assert worker.failure is None


def test_what_is_claimed_in_a_long_search_starts_before_its_lease_ends(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, job: Read
) -> None:
    """Each step of the search for refused rows takes a quarter of the lease, before the first claim and after it."""
    with engine.begin() as conn:
        good = queue.enqueue(conn, "plain", "good").id
        queue.enqueue_many(conn, (queue.new("plain", n) for n in range(20)))
    refuse(sql, f"NEW.id <> '{good}' AND NEW.status = 'running'", "PERFORM pg_sleep(0.25); RAISE check_violation")
    work(concurrency=30, lease=1.0)
    wait_until(lambda: ran == ["good"])
    wait_until(
        lambda: sql("SELECT status, stalls, attempts FROM sqlane_jobs WHERE id = :id", id=good) == [("completed", 0, 1)]
    )
    sql("DROP TRIGGER refuse ON sqlane_jobs")  # or the search goes on, and its end is waited for


@SOME_REFUSALS
def test_a_stale_job_whose_recovery_is_refused_holds_up_no_other(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, job: Read, refusal: str
) -> None:
    with engine.begin() as conn:
        ids = [one.id for one in queue.enqueue_many(conn, (queue.new("plain", n) for n in range(5)))]
        store.claim(conn, queue.tables, candidate_ids=ids, lock_token="dead", locked_by="dead", lease=0.001)
    refuse(sql, f"NEW.id = '{ids[2]}' AND NEW.status <> 'running'", refusal)
    worker = work(lease=60)
    wait_until(lambda: len(ran) == 4)
    assert job(ids[2]).status == "running"
    sql("DROP TRIGGER refuse ON sqlane_jobs")
    wait_until(lambda: job(ids[2]).status == "completed")
    assert worker.failure is None


@pytest.mark.parametrize("refusal", [*KINDS.values(), "RAISE serialization_failure"])
def test_an_expired_job_whose_deletion_is_refused_holds_up_no_other(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, refusal: str
) -> None:
    with engine.begin() as conn:
        ids = [one.id for one in queue.enqueue_many(conn, (queue.new("plain", n) for n in range(10)))]
    worker = work()
    wait_until(lambda: sql("SELECT count(*) FROM sqlane_jobs WHERE status = 'completed'") == [(10,)])
    sql("CREATE SEQUENCE numbers")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF OLD.id = '{ids[3]}' THEN {refusal.replace('NEW.', 'OLD.')}; END IF; RETURN OLD; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE DELETE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    sql("UPDATE sqlane_jobs SET expires_at = now() - interval '1 hour'")
    wait_until(lambda: sql("SELECT id FROM sqlane_jobs") == [(ids[3],)])
    assert worker.failure is None
