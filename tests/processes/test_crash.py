"""Processes that are killed, and jobs that kill theirs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.values.job import JobLock
from tests.processes import app
from tests.processes.conftest import SHORT, Start, Watch
from tests.support import wait_until

Enqueue = Callable[..., str]


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("worker_id", [None, "w1"], ids=["own names", "the same name"])
def test_a_killed_workers_job_runs_again(
    start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine, worker_id: str | None
) -> None:
    """A1, and A3: a new process with the old one's name never renews what it did not claim."""
    options: dict[str, Any] = {} if worker_id is None else {"worker_id": worker_id}
    id_ = enqueue("once", {"seconds": 3600})
    first = start("first", **options)
    (run,) = watch.wait_for(id_)
    kill(first)
    start("second", **options)
    _, again = watch.wait_for(id_, times=2)
    job = watch.wait_status(id_, "completed")
    assert (job.stalls, job.attempts, again.attempt, again.worker) == (1, 1, 1, "second")
    assert again.lock_token != run.lock_token
    with engine.begin() as conn:
        old = JobLock(id_, run.lock_token)
        tables = app.queue.tables
        assert store.renew_leases(conn, tables, jobs=[old], lease=60) == []
        assert store.complete(conn, tables, jobs=[old]) == []
        assert store.fail(conn, tables, job=old, error={}).changed is False


def test_recovery_needs_nothing_but_the_jobs_own_lease(
    start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine
) -> None:
    """A2: every row about the worker is deleted before the sweep."""
    id_ = enqueue("once", {"seconds": 3600})
    first = start()
    watch.wait_for(id_)
    kill(first)
    with engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM sqlane_sleepers")
        conn.exec_driver_sql("UPDATE sqlane_jobs SET locked_by = NULL")
    start()
    watch.wait_status(id_, "completed")


def test_a_job_that_kills_its_process_fails_after_its_stalls(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """A20: max_stalls 2 allows exactly three starts; then it fails with a StalledError and one failure job."""
    id_ = enqueue("crash")
    process = start(lease=0.3)
    while watch.job(id_).status != "failed":
        if process.poll() is not None:
            assert process.returncode == 137
            process = start(lease=0.3)
        wait_until(lambda: process.poll() is not None or watch.job(id_).status == "failed")  # noqa: B023
    job = watch.job(id_)
    assert len(watch.events(id_)) == 3
    assert (job.stalls, job.attempts) == (3, 0)
    assert job.last_error is not None
    assert job.last_error["type"].endswith("StalledError")
    reactions = watch.rows("SELECT id FROM sqlane_jobs WHERE job_name = 'failed'")
    assert len(reactions) == 1
    watch.wait_for(reactions[0].id, "failed:" + id_)


def test_a_job_killed_from_outside_gets_max_stalls_and_one_starts(
    start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine
) -> None:
    """A21: five starts with max_stalls 4, spaced by the growing stall delay."""
    id_ = enqueue("sleep_five")
    with engine.begin() as conn:
        # `run_at` is cut to the millisecond.
        conn.exec_driver_sql(
            "CREATE FUNCTION stalled() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO ledger (job_id, event, attempt, at) VALUES"
            "  (NEW.id, 'due', ceil(1000 * extract(epoch FROM NEW.run_at - NEW.updated_at)), NEW.run_at);"
            " RETURN NULL; END $$;"
            "CREATE TRIGGER stalled AFTER UPDATE ON sqlane_jobs FOR EACH ROW"
            " WHEN (OLD.status = 'running' AND NEW.status = 'pending') EXECUTE FUNCTION stalled()"
        )
    for times in range(1, 6):
        process = start(lease=0.3, stall_delay=0.05)
        watch.wait_for(id_, times=times)
        kill(process)
    start(lease=0.3, names=["quick"])
    job = watch.wait_status(id_, "failed")
    starts, due = watch.events(id_), watch.events(id_, "due")
    assert len(starts) == 5
    assert (job.stalls, job.attempts) == (5, 0)
    assert [event.attempt for event in due] == [50, 100, 200, 400], "the delays stored, in ms"
    assert all(again.at >= event.at for event, again in zip(due, starts[1:], strict=True)), "none before it was due"


def test_jobs_behind_a_crashed_one_run_when_its_key_is_free(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """A8: nothing of the key runs while the killed handler might; then all of it, in order."""
    ids = [enqueue("sleep", {"keys": ["k"]})] + [enqueue("quick", {"keys": ["k"]}) for _ in range(2)]
    first = start(names=["sleep"])
    watch.wait_for(ids[0])
    start("second", names=["quick"])
    watch.wait_status(enqueue("quick"), "completed")
    assert watch.events(ids[1]) == []
    kill(first)
    ((lease_end,),) = watch.rows("SELECT locked_until FROM sqlane_jobs WHERE status = 'running'")
    for id_ in ids[1:]:
        watch.wait_status(id_, "completed")
    # Until its lease ended it was to be taken for alive, and for a lease more it may have been.
    assert watch.events(ids[1])[0].at >= lease_end + timedelta(seconds=SHORT["lease"])
    assert watch.events(ids[1])[0].n < watch.events(ids[2])[0].n


def test_a_paused_workers_result_is_refused(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """A10: SIGSTOP past the lease, another worker runs the job, SIGCONT: one outcome, and no overlap of the key."""
    id_ = enqueue("once", {"seconds": 2}, mutex_keys=["k"])
    first = start("first")
    watch.wait_for(id_)
    first.send_signal(signal.SIGSTOP)
    start("second")
    watch.wait_for(id_, times=2)
    job = watch.wait_status(id_, "completed")
    first.send_signal(signal.SIGCONT)
    watch.wait_for(id_, "end", times=2)
    other = enqueue("quick", {"keys": ["k"]})
    watch.wait_status(other, "completed")
    assert watch.job(id_) == job
    assert (job.stalls, job.attempts) == (1, 1)
    assert watch.rows("SELECT * FROM sqlane_mutexes") == []


def test_maintenance_goes_on_after_a_backend_is_terminated(
    start: Start, watch: Watch, engine: sa.Engine, tmp_path: Path
) -> None:
    """A4: 50 jobs with ended leases, and the sweeper's connection dies at one of them, round after round: the others
    do not wait, and it is said once."""
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "INSERT INTO sqlane_jobs (id, job_name, status, lock_token, locked_by, locked_until)"
            " SELECT 'stale-' || n, 'nobody', 'running', 't', 'gone', now() - interval '1 minute'"
            " FROM generate_series(1, 50) AS n"
        )
        conn.exec_driver_sql(
            "CREATE SEQUENCE trips; CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.id = 'stale-25' AND NOT EXISTS (SELECT FROM ledger WHERE event = 'tripped') THEN"
            "  PERFORM nextval('trips'), pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER trip BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION trip()"
        )
    process = start()
    count = "SELECT count(*) FROM sqlane_jobs WHERE status = 'running'"
    wait_until(lambda: watch.rows(count)[0][0] == 1)
    # A sequence keeps what a transaction that is rolled back has counted.
    tries = "SELECT last_value FROM trips"
    seen = watch.rows(tries)[0][0]
    wait_until(lambda: watch.rows(tries)[0][0] >= seen + 2)
    with engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO ledger (event) VALUES ('tripped')")
    wait_until(lambda: watch.rows(count)[0][0] == 0)
    log = tmp_path / "worker-0.log"
    wait_until(lambda: "sweeper: works again after" in log.read_text())
    assert log.read_text().count("sweeper: OperationalError") == 1
    assert "ERROR" not in log.read_text()
    assert watch.rows("SELECT DISTINCT stalls FROM sqlane_jobs WHERE id LIKE 'stale-%'") == [(1,)]
    assert process.poll() is None
