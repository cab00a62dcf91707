"""Ends of processes in bad moments: just after a handler, without a database, by Ctrl-C for a whole group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa.demo.server import Server
from sqlane_sa.migrations import apply
from tests.processes import app
from tests.processes.conftest import PATIENCE, SHORT, Start, Watch
from tests.support import wait_until

Enqueue = Callable[..., str]

SLOTS = 4


def test_a_kill_repeats_only_what_ran(start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine) -> None:
    """A25: of 100 fast jobs, killed just after the 50th; what starts again is what the rows call running, and of what
    had ended no more than a turn of the worker leaves unwritten."""
    with engine.begin() as conn:
        app.queue.enqueue_many(conn, (app.queue.new("fiftieth", {}) for _ in range(100)))
    first = start("first", concurrency=SLOTS)
    assert first.wait(PATIENCE) == -signal.SIGKILL
    running = {row.id for row in watch.rows("SELECT id FROM sqlane_jobs WHERE status = 'running'")}
    start("the last", concurrency=SLOTS)
    wait_until(lambda: watch.rows("SELECT count(*) FROM sqlane_jobs WHERE status = 'completed'") == [(100,)], PATIENCE)
    twice = watch.rows("SELECT job_id FROM ledger WHERE event = 'start' GROUP BY job_id HAVING count(*) > 1")
    assert {row.job_id for row in twice} <= running
    # What was in the slots, and as many that ended while the last turn was on its way. What was claimed ahead of them
    # is running too, and starts for the first time.
    assert len(twice) <= 2 * SLOTS


def test_a_stop_without_a_database_ends(tmp_path: Path) -> None:
    """A25: the server is gone when SIGTERM comes; the process ends within its grace, and the lease does the rest."""
    options = SHORT | {"shutdown_timeout": 1.0, "lease": 2.0}
    with Server(fsync=False, tcp=True) as server, open(tmp_path / "log", "w") as log:
        engine = sa.create_engine(server.url(), pool_pre_ping=True)
        apply(engine, app.queue)
        with engine.begin() as conn:
            conn.exec_driver_sql(app.LEDGER)
            id_ = app.queue.enqueue(conn, "once", {"seconds": 3600}).id
        watch = Watch(engine)

        def worker() -> subprocess.Popen[str]:
            arguments = [sys.executable, str(Path(app.__file__)), server.url(tcp=True), json.dumps(options)]
            return subprocess.Popen(arguments, env=os.environ | {"WORKER": "w"}, stderr=log, text=True)

        process = worker()
        try:
            watch.wait_for(id_)
            server.stop()
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
            server.start()
            assert watch.job(id_).status == "running"
            process = worker()
            assert watch.wait_status(id_, "completed").stalls == 1
        finally:
            process.kill()
            process.wait()
            engine.dispose()


def test_ctrl_c_for_the_whole_group(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """K121: the terminal sends SIGINT to the handler's program too. The program ends, its handler says so, and that is
    a failed attempt like any other; the worker waits for it, and no row is left running."""
    id_, other = enqueue("child"), enqueue("sleep", {"seconds": 1})
    process = start(start_new_session=True, lease=60.0)
    watch.wait_for(id_)
    watch.wait_for(other)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert watch.events(id_, f"ended:{-signal.SIGINT}") or watch.events(id_, "ended:1")
    job = watch.job(id_)
    assert (job.status, job.attempts, job.stalls) == ("pending", 1, 0)
    assert job.last_error is not None and job.last_error["type"].endswith("CalledProcessError")
    assert watch.job(other).status == "completed"
    assert watch.rows("SELECT count(*) FROM sqlane_jobs WHERE status = 'running'") == [(0,)]


@pytest.mark.parametrize("attempts", [0, 1], ids=["its first attempt", "its last attempt"])
def test_an_older_run_changes_nothing_after_a_newer_one(
    start: Start, watch: Watch, enqueue: Enqueue, engine: sa.Engine, attempts: int
) -> None:
    """A14: SIGSTOP past the lease; the newer run fails for good, and then the older one raises."""
    id_ = enqueue("overlap", {"seconds": 2})
    with engine.begin() as conn:
        conn.execute(sa.text("UPDATE sqlane_jobs SET attempts = :n"), {"n": attempts})
    first = start("first", names=["overlap"])
    watch.wait_for(id_, "the older run")
    first.send_signal(signal.SIGSTOP)
    start("second")
    failed = watch.wait_status(id_, "failed")
    first.send_signal(signal.SIGCONT)
    watch.wait_for(id_, "end")
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    assert watch.job(id_) == failed
    assert (failed.attempts, failed.stalls) == (attempts + 1, 1)
    assert failed.last_error is not None and failed.last_error["message"] == "the newer run's word"
    (reaction,) = watch.rows("SELECT id FROM sqlane_jobs WHERE job_name = 'failed'")
    watch.wait_for(reaction.id, "failed:" + id_)


def test_a_program_that_a_handler_stops_ends_after_the_others(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """Nothing comes after its `run`, which returns when they have ended."""
    ids = [enqueue("sleep", {"seconds": 1.5})]
    process = start()
    watch.wait_for(ids[0])
    ids.append(enqueue("stop"))
    assert process.wait(60) == 0
    jobs = [watch.job(id_) for id_ in ids]
    assert [(job.status, job.attempts) for job in jobs] == [("completed", 1)] * 2
