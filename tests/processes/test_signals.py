"""SIGTERM and SIGINT, once, twice, thrice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.processes import trapped_app
from tests.processes.conftest import PATIENCE, Start, Watch
from tests.support import wait_until

Enqueue = Callable[..., str]

RUNNING = "SELECT count(*) FROM sqlane_jobs WHERE status = 'running'"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_job_may_finish(start: Start, watch: Watch, enqueue: Enqueue, number: signal.Signals) -> None:
    """A6, K121: nothing starts after the signal; what runs finishes, and the exit code is 0."""
    id_ = enqueue("sleep", {"seconds": 1.5})
    process = start("first", concurrency=1)
    watch.wait_for(id_)
    waiting = [enqueue("quick") for _ in range(5)]
    process.send_signal(number)
    assert process.wait(60) == 0
    assert watch.job(id_).status == "completed"
    assert watch.rows(RUNNING) == [(0,)]
    start("second")
    for other in waiting:
        watch.wait_status(other, "completed")
        assert [event.worker for event in watch.events(other)] == ["second"]


@pytest.mark.parametrize("name", ["nap", "sleep"])
def test_an_endless_job_is_released_without_an_attempt(start: Start, watch: Watch, enqueue: Enqueue, name: str) -> None:
    """K119: handed back before the exit, long before the lease ends; its keys linger only if its handler still runs."""
    id_ = enqueue(name, {}, mutex_keys=["k"])
    process = start(shutdown_timeout=0.2, lease=60.0)
    watch.wait_for(id_)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    job = watch.job(id_)
    assert (job.status, job.attempts, job.stalls) == ("pending", 0, 0)
    lingers = watch.rows("SELECT held_until IS NOT NULL AS lingers FROM sqlane_mutexes")
    assert lingers == ([(True,)] if name == "sleep" else [])


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_job_that_waits_for_its_query_is_released(start: Start, watch: Watch, enqueue: Enqueue, driver: str) -> None:
    """K119: an async handler inside `await session.execute(...)`; its lease would keep the job for a minute."""
    id_ = enqueue("query", {"driver": driver})
    process = start(shutdown_timeout=0.2, lease=60.0)
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    wait_until(lambda: watch.rows(asleep) == [(1,)])
    assert watch.job(id_).status == "running"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    job = watch.job(id_)
    assert (job.status, job.attempts, job.stalls, job.locked_by) == ("pending", 0, 0, None)


def test_a_second_signal_does_not_wait(
    start: Start, watch: Watch, enqueue: Enqueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K121: at once, and the job handed back."""
    monkeypatch.setenv("LEVEL", "INFO")
    id_ = enqueue("sleep", {})
    process = start(shutdown_timeout=3600.0)
    watch.wait_for(id_)
    process.send_signal(signal.SIGTERM)
    # Two that are sent before the process has taken one arrive as one.
    wait_until(lambda: "claims nothing more" in (tmp_path / "worker-0.log").read_text())
    other = enqueue("quick")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert watch.job(id_).status == watch.job(other).status == "pending"


def test_a_third_signal_ends_the_process(start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine) -> None:
    """K121: at once, with the job left to its lease: here the release waits for a lock."""
    id_ = enqueue("sleep", {})
    process = start(shutdown_timeout=3600.0, lease=60.0)
    watch.wait_for(id_)
    with engine.begin() as conn:
        conn.exec_driver_sql("SELECT * FROM sqlane_jobs FOR UPDATE")

        def ended() -> bool:
            process.send_signal(signal.SIGTERM)  # several may arrive as one
            return process.poll() is not None

        wait_until(ended)
        assert process.returncode == 128 + signal.SIGTERM
    assert watch.job(id_).status == "running"


def test_a_claim_under_way_is_handed_back(
    start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K120: the signal comes while the claim waits in the database; nothing is left running, nothing was started."""
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.status = 'running' AND OLD.status = 'pending' THEN PERFORM pg_advisory_xact_lock(1); END IF;"
            " RETURN NEW; END $$;"
            "CREATE TRIGGER slow BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION slow()"
        )
    monkeypatch.setenv("LEVEL", "INFO")
    ids = [enqueue("quick", priority=n) for n in range(3)]
    claiming = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with engine.begin() as conn:
        conn.exec_driver_sql("SELECT pg_advisory_xact_lock(1)")
        process = start()
        wait_until(lambda: watch.rows(claiming)[0][0] == 1)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "claims nothing more" in (tmp_path / "worker-0.log").read_text())
        assert watch.rows(claiming) == [(1,)]
    assert process.wait(60) == 0
    for id_ in ids:
        job = watch.job(id_)
        assert (job.status, job.attempts, job.stalls) == ("pending", 0, 0)
    assert watch.rows("SELECT * FROM ledger") == []


def test_no_time_is_a_bad_time_for_a_signal(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """K120: after SIGTERM at random moments of a stream of jobs nothing is left running, and each job ran once; more
    moments are in tests/faults/test_sigterms.py."""
    chance = random.Random(1)
    ids: list[str] = []
    for _ in range(3):
        ids += [enqueue("quick") for _ in range(20)]
        process = start(concurrency=4)
        watch.wait_for(ids[-20 + chance.randrange(15)])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert watch.rows(RUNNING) == [(0,)]
    start(concurrency=4)
    for id_ in ids:
        watch.wait_status(id_, "completed")
        assert len(watch.events(id_)) == 1


def test_no_line_is_a_bad_place_for_a_signal(watch: Watch, database_url: str) -> None:
    """Python handles it between two steps of the main thread, which may hold a lock: the first one and the second."""
    program = [sys.executable, str(Path(trapped_app.__file__)), database_url]
    answer = subprocess.run(program, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("SIGTERM at") == 2 * trapped_app.LINES
    assert watch.rows("SELECT DISTINCT status FROM sqlane_jobs") == [("completed",)]
