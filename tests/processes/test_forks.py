"""An engine that was used before a fork, in both processes after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa import Worker
from tests.processes import fork_app, fork_running_app

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")


@pytest.mark.parametrize("how", ["dispose", "worker"])
def test_both_processes_enqueue_and_the_child_works(database_url: str, engine: sa.Engine, how: str) -> None:
    """B39: with `engine.dispose(close=False)` in the child, as documented, both enqueue at the same time; and without
    it, a worker in the child takes none of the connections that it has inherited."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(fork_app.__file__)), database_url, how],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    Worker(engine, fork_app.queue, lease=60).run_until_idle()
    with engine.connect() as conn:
        rows = conn.execute(
            sa.text("SELECT job_name, status, count(*) FROM sqlane_jobs GROUP BY 1, 2 ORDER BY 1")
        ).all()
    n = 201 if how == "dispose" else 101
    assert rows == [("both", "completed", 1), ("n", "completed", n)]


def test_a_worker_that_runs_is_not_the_childs(database_url: str, engine: sa.Engine) -> None:
    """A `stop` there has no threads to wait for: not for the `shutdown_timeout` of an hour."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(fork_running_app.__file__)), database_url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    with engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT status, count(*) FROM sqlane_jobs GROUP BY 1")).all()
    assert rows == [("completed", 2)]
