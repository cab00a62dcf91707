"""A trigger of the application's that lacks a table or a right for some rows: an outage for those, and for no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, Retry, Worker, store
from sqlane_sa.worker.claims import MAX_ASIDE
from tests.support import wait_until

Read = Callable[[str], Job]

REFUSALS = pytest.mark.parametrize(
    "refusal",
    ["PERFORM FROM not_there", "RAISE insufficient_privilege", "NEW.not_there := 1"],
    ids=["table", "right", "column"],
)
KEYS = pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])


@pytest.fixture
def ran(queue: Queue) -> list[Any]:
    """The payloads of the jobs that ended well."""
    ended: list[Any] = []
    queue.job("plain")(ended.append)
    queue.job("keyed", mutex_keys=lambda payload: [str(payload)])(ended.append)
    return ended


def refuse(sql: Any, condition: str, refusal: str) -> None:
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


@REFUSALS
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
    wait_until(lambda: f"job {id_} (odd): its result waits until it is not refused" in caplog.text)
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
    assert caplog.text.count("its result waits until it is not refused") == 1


@KEYS
def test_claims_that_are_all_refused(
    queue: Queue, ran: list[Any], work: Callable[..., Worker], engine: sa.Engine, sql: Any, caplog: Any, keyed: bool
) -> None:
    """Nothing is started or counted until it is over; each job is told of once, and no more of them than one worker
    sets aside: beyond that it is an outage."""
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("keyed" if keyed else "plain", n) for n in range(300)))
    refuse(sql, "NEW.status = 'running'", "PERFORM FROM not_there")
    worker = work(concurrency=50)
    wait_until(lambda: caplog.text.count("cannot be claimed and is left alone") >= 50)
    sql("CREATE TABLE not_there ()")
    wait_until(lambda: len(ran) == 300)
    wait_until(lambda: sql("SELECT DISTINCT status, attempts FROM sqlane_jobs") == [("completed", 1)])
    assert caplog.text.count("cannot be claimed and is left alone") <= MAX_ASIDE
    assert worker.failure is None


@REFUSALS
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
