"""find_stale and recover_stale: jobs whose lease has ended, taken back under the row lock and only if still stale."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import Recovery
from sqlane_sa.values.job import FailedJob, NewJob
from tests.store.races import committed
from tests.store.steps import (
    about,
    add,
    candidates,
    claim,
    end_lease,
    end_lingers,
    holds,
    job_row,
    lines,
    rows,
    run,
    running,
)


def stale(conn: sa.Connection, queue: Queue, name: str = "n", stalls: int = 0, **options: object) -> str:
    id = running(conn, queue, name, **options).id
    end_lease(conn, id)
    run(conn, "UPDATE sqlane_jobs SET stalls = :stalls WHERE id = :id", stalls=stalls, id=id)
    return id


def recover(conn: sa.Connection, queue: Queue, id: str, **options: object) -> Recovery:
    options = {"lease": 60, "build_failure_job": queue.build_failure_job, **options}
    return store.recover_stale(conn, queue.tables, id=id, **options)


def test_stale_jobs_oldest_first(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [stale(any_conn, queue) for _ in range(4)]
    for id, age in zip(ids, (2, 4, 1, 3), strict=True):
        back = "UPDATE sqlane_jobs SET locked_until = locked_until - CAST(:age AS int) * interval '1 s' WHERE id = :id"
        run(any_conn, back, age=age, id=id)
    running(any_conn, queue)
    add(any_conn, queue)
    assert store.find_stale(any_conn, queue.tables, limit=10) == [ids[i] for i in (1, 3, 0, 2)]
    assert store.find_stale(any_conn, queue.tables, limit=2) == [ids[1], ids[3]]


def test_a_recovered_job(any_conn: sa.Connection, queue: Queue) -> None:
    id = stale(any_conn, queue, payload=[1], mutex_keys=["b", "a"])
    recovery = recover(any_conn, queue, id)
    assert recovery == Recovery(id, "pending", 1, 30.0, None, "n", "worker-1")
    row = job_row(any_conn, id)
    assert (row["status"], row["attempts"], row["stalls"]) == ("pending", 0, 1)
    assert row["run_at"] == about(30)
    assert row["last_error"]["type"].endswith("StalledError")
    assert [row[name] for name in ("lock_token", "locked_by", "locked_until", "started_at")] == [None] * 4
    assert lines(any_conn) == [("a", id), ("b", id)]
    assert store.read_payloads(any_conn, queue.tables, ids=[id]) == {id: [1]}
    assert recover(any_conn, queue, id) == Recovery(id, None)


def test_its_keys_linger_for_a_lease(any_conn: sa.Connection, queue: Queue) -> None:
    """The old handler may still run, so that neither the next job nor this one may start."""
    id = stale(any_conn, queue, mutex_keys=["k"])
    behind = add(any_conn, queue, mutex_keys=["k"])
    recover(any_conn, queue, id, lease=45, stall_delay=0)
    assert holds(any_conn) == {"k": (id, True)}
    ends = "SELECT extract(epoch FROM held_until - statement_timestamp()) FROM sqlane_mutexes"
    assert rows(any_conn, ends) == [about(45)]
    assert candidates(any_conn, queue) == []
    end_lingers(any_conn)
    assert candidates(any_conn, queue) == [behind]


@pytest.mark.parametrize(
    ("stall_delay", "stalls", "delay"),
    [(30, 0, 30), (30, 1, 60), (30, 6, 1920), (30, 7, 3600), (0.5, 2, 2), (timedelta(hours=2), 0, 3600), (0, 5, 0)],
)
def test_the_delay_doubles_up_to_an_hour(
    any_conn: sa.Connection, queue: Queue, stall_delay: float, stalls: int, delay: float
) -> None:
    queue.define("n", max_stalls=1000)
    id = stale(any_conn, queue, stalls=stalls)
    assert recover(any_conn, queue, id, stall_delay=stall_delay).delay == delay
    assert job_row(any_conn, id)["run_at"] == about(delay)


def test_a_number_of_stalls_beyond_all_reason(any_conn: sa.Connection, queue: Queue) -> None:
    id = stale(any_conn, queue, stalls=2**30)
    run(any_conn, "UPDATE sqlane_jobs SET max_stalls = 2147483647")
    assert recover(any_conn, queue, id).delay == 3600


@pytest.mark.parametrize("max_stalls", [0, 1, 3])
def test_the_last_stall_fails_the_job_with_its_failure_job(
    any_conn: sa.Connection, queue: Queue, max_stalls: int
) -> None:
    queue.define("n", max_stalls=max_stalls, failure_job="sorry", mutex_keys=["k"])
    id = stale(any_conn, queue)
    for stall in range(1, max_stalls + 1):
        assert recover(any_conn, queue, id, stall_delay=0, lease=0)[:3] == (id, "pending", stall)
        claim(any_conn, queue, id, token=f"again-{stall}")
        end_lease(any_conn, id)
    recovery = recover(any_conn, queue, id)
    assert (recovery.status, recovery.stalls, recovery.name) == ("failed", max_stalls + 1, "n")
    assert recovery.failure is not None
    row = job_row(any_conn, id)
    assert (row["status"], row["attempts"], row["stalls"]) == ("failed", 0, max_stalls + 1)
    assert row["expires_at"] is not None
    assert holds(any_conn) == {"k": (id, True)}
    added = store.get(any_conn, queue.tables, id=recovery.failure.failure_job_id or "")
    assert added is not None
    assert (added.name, added.payload["id"]) == ("sorry", id)


def test_a_failure_job_that_cannot_be_built_still_lets_it_fail(any_conn: sa.Connection, queue: Queue) -> None:
    def build(failed: FailedJob) -> NewJob:
        raise ZeroDivisionError("no")

    queue.define("n", max_stalls=0, failure_job="sorry")
    recovery = recover(any_conn, queue, stale(any_conn, queue), build_failure_job=build)
    assert recovery.failure is not None
    assert (recovery.status, recovery.failure.failure_job_error) == ("failed", "ZeroDivisionError: no")


def test_what_is_not_stale_is_left_alone(any_conn: sa.Connection, queue: Queue) -> None:
    live, pending = running(any_conn, queue, mutex_keys=["k"]), add(any_conn, queue)
    done = running(any_conn, queue)
    store.complete(any_conn, queue.tables, jobs=[done])
    for id in (live.id, pending, done.id, "unknown"):
        assert recover(any_conn, queue, id) == Recovery(id, None)
    assert holds(any_conn) == {"k": (live.id, False)}
    assert job_row(any_conn, live.id)["lock_token"] == live.lock_token


def test_a_renewal_that_is_on_its_way_wins(engine: sa.Engine, queue: Queue) -> None:
    def prepare(conn: sa.Connection) -> object:
        job = running(conn, queue, mutex_keys=["k"])
        end_lease(conn, job.id)
        return job

    job = committed(engine, prepare)
    with engine.connect() as one, engine.connect() as two:
        assert store.find_stale(two, queue.tables, limit=1) == [job.id]
        assert store.renew_leases(one, queue.tables, jobs=[job], lease=60) == [job.id]
        two.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        assert recover(two, queue, job.id).status is None, "not waited for"
        one.commit()
        assert recover(two, queue, job.id).status is None
        assert holds(two) == {"k": (job.id, False)}
        assert (job_row(two, job.id)["status"], job_row(two, job.id)["stalls"]) == ("running", 0)


def test_a_renewal_between_the_look_and_the_lock_wins(engine: sa.Engine, queue: Queue) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    committed(engine, lambda conn: end_lease(conn, job.id))
    with engine.connect() as conn:
        [id] = store.find_stale(conn, queue.tables, limit=1)
        assert committed(engine, lambda other: store.renew_leases(other, queue.tables, jobs=[job], lease=60))
        assert recover(conn, queue, id).status is None


def test_a_finish_that_is_on_its_way_wins(engine: sa.Engine, queue: Queue) -> None:
    job = committed(engine, lambda conn: running(conn, queue))
    committed(engine, lambda conn: end_lease(conn, job.id))
    with engine.connect() as one, engine.connect() as two:
        assert store.complete(one, queue.tables, jobs=[job]) == [job.id]
        assert recover(two, queue, job.id).status is None
        one.commit()
        assert recover(two, queue, job.id).status is None
        assert job_row(two, job.id)["status"] == "completed"


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_sweepers_hand_a_job_back_once(engine: sa.Engine, queue: Queue, first_commits: bool) -> None:
    id = committed(engine, lambda conn: stale(conn, queue, mutex_keys=["k"]))
    with engine.connect() as one, engine.connect() as two:
        assert store.find_stale(one, queue.tables, limit=9) == store.find_stale(two, queue.tables, limit=9) == [id]
        assert recover(one, queue, id, stall_delay=0).status == "pending"
        assert recover(two, queue, id, stall_delay=0).status is None
        if first_commits:
            one.commit()
            assert recover(two, queue, id, stall_delay=0).status is None
        else:
            one.rollback()
            assert recover(two, queue, id, stall_delay=0).status == "pending"
        two.commit()
        assert job_row(one, id)["stalls"] == 1
        assert rows(one, "SELECT count(*) FROM sqlane_waits") == [1]
