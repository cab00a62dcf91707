"""A worker's memory is bounded by the handlers that run, and not by what is due."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.processes import large_app

MB = 1_000_000
SIZE = 5 * MB
JOBS = 30
SLOTS = 2

# The text is compressed once, and each row gets a copy of that.
ADD = """
WITH one AS MATERIALIZED (SELECT to_json(repeat('payload ', :size / 8)) AS payload),
filled AS (
    INSERT INTO sqlane_payloads (id, payload) SELECT 'large-' || n, payload FROM one, generate_series(1, :n) AS n)
INSERT INTO sqlane_jobs (id, job_name, status) SELECT 'large-' || n, 'large', 'pending' FROM generate_series(1, :n) AS n
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory in /proc")
def test_many_large_payloads_are_not_read_at_once(database_url: str, engine: sa.Engine) -> None:
    """I107: 30 ready jobs of 5 MB, and 2 handlers; nor do the logs hold any of it."""

    def work(n: int) -> tuple[int, str]:
        with engine.begin() as conn:
            conn.exec_driver_sql("TRUNCATE sqlane_jobs, sqlane_payloads")
            conn.execute(sa.text(ADD), {"n": n, "size": SIZE})
        options = json.dumps({"concurrency": SLOTS, "lease": 60.0})
        done = subprocess.run(
            [sys.executable, str(Path(large_app.__file__)), database_url, options],
            check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        with engine.connect() as conn:
            states = conn.execute(sa.text("SELECT status, count(*) FROM sqlane_jobs GROUP BY status")).all()
        assert states == [("completed", n)]
        return int(done.stdout) * 1024, done.stderr

    few, _ = work(SLOTS)
    many, log = work(JOBS)
    # What the handlers in work hold, in several copies, whatever the allocator keeps of those before.
    assert many < few + SLOTS * 6 * SIZE
    assert "payload payload" not in log
