"""A worker's memory is bounded by the handlers that run, and not by what is due."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.processes import large_app
from tests.support import long_run

MB = 1_000_000
SIZE = 5 * MB

# The text is compressed once, and each row gets a copy of that.
ADD = """
WITH one AS MATERIALIZED (SELECT to_json(repeat('payload ', :size / 8)) AS payload),
filled AS (
    INSERT INTO sqlane_payloads (id, payload) SELECT 'large-' || n, payload FROM one, generate_series(1, :n) AS n)
INSERT INTO sqlane_jobs (id, job_name, status) SELECT 'large-' || n, 'large', 'pending' FROM generate_series(1, :n) AS n
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory in /proc")
@pytest.mark.parametrize(
    ("jobs", "slots"), [(30, 2), pytest.param(200, 2, marks=long_run()), pytest.param(400, 100, marks=long_run())]
)
def test_many_large_payloads_are_not_read_at_once(database_url: str, engine: sa.Engine, jobs: int, slots: int) -> None:
    """I107: ready jobs of 5 MB, all of which one claim may take, and fewer handlers; nor do the logs hold any of it."""

    def work(n: int) -> tuple[int, str]:
        with engine.begin() as conn:
            conn.exec_driver_sql("TRUNCATE sqlane_jobs, sqlane_payloads")
            conn.execute(sa.text(ADD), {"n": n, "size": SIZE})
        options = json.dumps({"concurrency": slots, "lease": 60.0})
        done = subprocess.run(
            [sys.executable, str(Path(large_app.__file__)), database_url, options],
            check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        with engine.connect() as conn:
            states = conn.execute(sa.text("SELECT status, count(*) FROM sqlane_jobs GROUP BY status")).all()
        assert states == [("completed", n)]
        return int(done.stdout) * 1024, done.stderr

    few, _ = work(2)
    many, log = work(jobs)
    print(
        f"\nreliability: {jobs} payloads of 5 MB | {slots} handlers | peak {many / MB:.0f} MB; of 2 {few / MB:.0f} MB"
    )
    # What each handler in work holds, reply, text and value, and what the allocator keeps of those before.
    assert many < few + slots * 3 * SIZE + 8 * SIZE
    assert "payload payload" not in log
