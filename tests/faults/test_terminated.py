"""Backends of a worker are terminated, one after the other, under load."""

from __future__ import annotations

import pytest

from tests.faults.conftest import StartLoad
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

OLDEST = """
SELECT pg_terminate_backend(pid) FROM (
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'worker-%'
    AND backend_start <= :until ORDER BY backend_start LIMIT 1) AS oldest"""
LEFT = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'worker-%'
AND backend_start <= :until"""


def test_each_backend_is_terminated(load: StartLoad, database_url: str) -> None:
    """B26: one a second, until each that was there at first is gone: the worker goes on with new ones."""
    under = load(database_url, workers=1, concurrency=3)
    # Longer than its lease: the heartbeat has had a job to renew, and has a connection.
    under.producer.enqueue_one("long", seconds=2 * under.options["lease"])
    ended = "SELECT finished_at IS NOT NULL FROM sqlane_jobs WHERE id = 'long'"
    wait_until(lambda: under.check_alive() or under.scalar(ended), 60, "the end of the long job")
    until = under.scalar("SELECT clock_timestamp()")
    terminated = 0
    while under.scalar(LEFT, until=until):
        terminated += bool(under.scalar(OLDEST, until=until))
        under.last(1.0)
        under.wait_for_progress()
    under.fault_ended()
    counts = under.finish("backends terminated", f"one a second, {terminated} of one worker")
    assert counts.faults == {}
    assert terminated >= 5, "the loop, the heartbeat, the sweeper, the listener, and those of handlers"
    [log] = under.logs
    # The heartbeat's too, where it has had a beat with jobs to renew: only then it has a connection. The loop says
    # nothing of one that it lost after a claim: those jobs start, and the next turn has a new one.
    assert "sweeper: works again" in log, log
    assert "listener: ConnectionError" in log
