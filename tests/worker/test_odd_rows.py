"""One row that cannot be claimed, or a transaction of somebody else's that stands still, stops no other job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, store
from sqlane_sa.worker.running import LEASE_LOST
from tests.support import wait_until

Read = Callable[[str], Job]

KEYS = pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])


@pytest.fixture
def names(queue: Queue) -> list[str]:
    """Jobs that were run, by payload."""
    done: list[str] = []
    queue.job("plain")(done.append)
    queue.job("keyed", mutex_keys=lambda payload: [payload])(done.append)
    return done


@pytest.mark.parametrize(
    "fault",
    [
        "RAISE EXCEPTION 'not this one'",
        "RAISE EXCEPTION 'not this one' USING ERRCODE = 'MY001'",
        "RAISE cardinality_violation",
        "NEW.locked_by := repeat('x', 1 / (length(NEW.id) - length(NEW.id)))",
    ],
    ids=["raised", "raised with a code of its own", "cardinality", "data"],
)
@KEYS
def test_a_row_that_cannot_be_claimed_is_left_alone(
    queue: Queue, names: list[str], work: Any, engine: sa.Engine, sql: Any, job: Read, caplog: Any,
    keyed: bool, fault: str,
) -> None:  # fmt: skip
    """A14, A24: the neighbours run, one clear line is logged, and the job runs once it can be claimed."""
    name = "keyed" if keyed else "plain"
    with engine.begin() as conn:
        ids = [one.id for one in queue.enqueue_many(conn, (queue.new(name, f"{n:02}") for n in range(40)))]
    odd = ids[7]
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{odd}' AND NEW.status = 'running' THEN {fault}; END IF;"
        " RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    worker = work(concurrency=5, poll_interval=0.02)
    wait_until(lambda: len(names) == 39)
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("plain", "later"), queue.new("keyed", "later")))
    wait_until(lambda: names.count("later") == 2)
    assert (job(odd).status, job(odd).attempts) == ("pending", 0)
    assert worker.failure is None
    said = [record.getMessage() for record in caplog.records]
    assert sum(odd in message for message in said) == 1
    assert f"job {odd} cannot be claimed and is left alone; the others go on" in caplog.text
    assert not any("trying again until it works" in message for message in said)


def test_results_are_written_when_the_claim_of_the_same_turn_fails(
    queue: Queue, names: list[str], work: Any, enqueue: Any, sql: Any, job: Read, engine: sa.Engine
) -> None:
    """They share a transaction with the claim: here every claim fails, after the job that runs was claimed."""
    go = threading.Event()

    @queue.job("slow")
    def slow(payload: Any) -> None:
        assert go.wait(60)

    first = enqueue("slow")
    work(lease=60)  # renewals are refused, too
    wait_until(lambda: job(first).status == "running")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.status = 'running' THEN RAISE cardinality_violation; END IF; RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("plain", "p") for _ in range(150)))
    go.set()
    wait_until(lambda: job(first).status == "completed")
    assert names == []
    sql("DROP TRIGGER refuse ON sqlane_jobs")


def test_a_rivals_claim_that_stands_still(
    queue: Queue, names: list[str], work: Any, enqueue: Any, engine: sa.Engine, job: Read, caplog: Any
) -> None:
    """It has inserted a key and not committed; an older job of that key comes, and other keys go on."""
    taken = enqueue("keyed", "a")
    with engine.connect() as rival:
        (claimed,) = store.claim(
            rival, queue.tables, candidate_ids=[taken], lock_token="rival", locked_by="rival", lease=60
        )
        older = enqueue("keyed", "a", run_at=claimed.run_at.replace(year=2020))
        work()
        wait_until(lambda: f"job {older} waits for a lock that another transaction holds" in caplog.text)
        others = [enqueue("keyed", "b"), enqueue("plain", "c")]
        wait_until(lambda: all(job(id_).status == "completed" for id_ in others))
        assert job(older).status == "pending"
        rival.rollback()
    wait_until(lambda: job(taken).status == "completed")
    assert names[-2:] == ["a", "a"]
    assert caplog.text.count("waits for a lock") == 1


LOCKS = {
    "row": "SELECT FROM sqlane_jobs WHERE id = :id FOR UPDATE",
    "key": "SELECT FROM sqlane_mutexes WHERE job_id = :id FOR UPDATE",
    "payload": "SELECT FROM sqlane_payloads WHERE id = :id FOR UPDATE",
}


@pytest.mark.parametrize("what", LOCKS)
def test_a_running_job_that_somebody_has_locked(
    queue: Queue, names: list[str], work: Any, enqueue: Any, engine: sa.Engine, job: Read, caplog: Any, what: str
) -> None:
    """Its result waits for the end of that, longer than its lease; the results beside it do not."""
    go = threading.Event()
    ran: list[Any] = []

    @queue.job("slow", mutex_keys=lambda payload: [f"slow {payload}"])
    def slow(payload: Any) -> None:
        ran.append(payload)
        assert go.wait(60)

    ids = [enqueue("slow", n) for n in range(10)]
    worker = work(concurrency=20, lease=60)
    wait_until(lambda: len(ran) == 10)
    with engine.connect() as rival:
        rival.execute(sa.text(LOCKS[what]), {"id": ids[4]})
        go.set()
        wait_until(lambda: [job(id_).status for id_ in ids].count("completed") == 9)
        later = [enqueue("plain", "p"), enqueue("keyed", "k")]
        wait_until(lambda: all(job(id_).status == "completed" for id_ in later))
        (held,) = wait_until(lambda: found if len(found := worker._parts.jobs.snapshot()) == 1 else ())
        held.cancel(LEASE_LOST)
        assert job(ids[4]).status == "running"
        rival.rollback()
    wait_until(lambda: job(ids[4]).status == "completed")
    assert len(ran) == 10
    assert caplog.text.count("wait for rows that another transaction has locked") == 1
    wait_until(lambda: "the results that waited for their rows are written" in caplog.text)


def test_a_stale_job_whose_key_is_locked_holds_up_no_sweep(
    queue: Queue, names: list[str], work: Any, enqueue: Any, engine: sa.Engine, sql: Any, job: Read
) -> None:
    ids = [enqueue("keyed", key) for key in "ab"]
    with engine.begin() as conn:
        store.claim(conn, queue.tables, candidate_ids=ids, lock_token="dead", locked_by="dead", lease=0.001)
    sql("INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token) VALUES ('orphan', 'x', 'x')")
    with engine.connect() as rival:
        rival.execute(sa.text(LOCKS["key"]), {"id": ids[0]})
        work(lease=1.0)
        wait_until(lambda: job(ids[1]).status == "completed")
        wait_until(lambda: not sql("SELECT FROM sqlane_mutexes WHERE mutex_key = 'orphan'"))
        assert job(ids[0]).status == "running"
        rival.rollback()
    wait_until(lambda: job(ids[0]).status == "completed")


def test_a_database_with_another_style_of_dates(
    queue: Queue, names: list[str], run: Any, enqueue: Any, database_url: str, sql: Any
) -> None:
    sql(f"ALTER DATABASE {sa.make_url(database_url).database} SET datestyle = 'German, DMY'")
    other = sa.create_engine(database_url)
    enqueue("plain", "a")
    enqueue("keyed", "b")
    run(engine=other)
    other.dispose()
    assert names == ["a", "b"]


@pytest.mark.parametrize("fault", ["RAISE EXCEPTION 'not this one'", "RAISE deadlock_detected"])
def test_a_row_that_cannot_be_marked_as_stuck_holds_up_nothing(
    queue: Queue, names: list[str], work: Any, enqueue: Any, sql: Any, job: Read, caplog: Any, fault: str
) -> None:
    go = threading.Event()

    @queue.job("slow", timeout=0.05)
    def slow(payload: Any) -> None:
        assert go.wait(60)

    odd, other = enqueue("slow"), enqueue("slow")
    sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = '{odd}' AND NEW.timed_out_at IS NOT NULL THEN {fault}; END IF;"
        " RETURN NEW; END $$"
    )
    sql("CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    worker = work(poll_interval=0.02)
    wait_until(lambda: sql("SELECT id FROM sqlane_jobs WHERE timed_out_at IS NOT NULL") == [(other,)])
    for n in range(3):
        enqueue("plain", str(n))
    wait_until(lambda: len(names) == 3)
    assert "trying again until it works" not in caplog.text
    assert worker.failure is None
    go.set()
    wait_until(lambda: job(other).status == "pending")
