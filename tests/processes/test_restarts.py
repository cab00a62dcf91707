"""Workers that are started again and again, and none of which lives for long."""

from __future__ import annotations

import signal
import subprocess

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.processes.conftest import PATIENCE, Start, Watch
from tests.support import long_run, wait_until

OPEN = "SELECT count(*) FROM sqlane_jobs WHERE status <> 'completed'"
KEPT = "SELECT count(*) FROM sqlane_jobs WHERE expires_at > statement_timestamp()"
EXPIRED = "SELECT id FROM sqlane_jobs WHERE expires_at <= statement_timestamp()"
LEFT = "SELECT count(*) FROM sqlane_jobs WHERE id = ANY(:ids)"
JOBS = 20


@pytest.mark.parametrize(
    ("restarts", "lives", "retention", "sweep_interval"),
    [(2, 0.0, 0.3, 3600.0), pytest.param(30, 20.0, 60.0, 15.0, marks=long_run(timeout=1800))],
)
def test_each_start_deletes_what_has_expired(
    start: Start, watch: Watch, engine: sa.Engine, restarts: int, lives: float, retention: float, sweep_interval: float
) -> None:
    """D52: with a sweep interval that none lives to see, and the default; they end in order and by SIGKILL in turn."""
    producer = Queue()
    producer.define("quick", completed_retention=retention)
    most = 0
    for n in range(restarts):
        with engine.begin() as conn:
            producer.enqueue_many(conn, [producer.new("quick") for _ in range(JOBS)])
        expired = [row.id for row in watch.rows(EXPIRED)]
        worker = start(sweep_interval=sweep_interval)
        wait_until(lambda: watch.rows(OPEN) == [(0,)], PATIENCE, "the end of all jobs")
        wait_until(lambda: watch.rows(LEFT, ids=expired) == [(0,)], PATIENCE, f"the end of {expired}")  # noqa: B023
        most = max(most, len(expired))
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(lives)
        worker.send_signal(signal.SIGKILL if n % 2 else signal.SIGTERM)
        worker.wait(PATIENCE)
        if not lives:
            wait_until(lambda: watch.rows(KEPT) == [(0,)], message="the end of the retention")
    jobs, left = restarts * JOBS, watch.rows("SELECT count(*) FROM sqlane_jobs")[0][0]
    print(
        f"\nreliability: worker started anew every {lives:g} s | {restarts} times, retention {retention:g} s | "
        f"{jobs} jobs, {jobs - left} deleted; at most {most} had expired at a start, none stayed"
    )
    assert left < jobs
