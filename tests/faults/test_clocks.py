"""Processes whose clocks are ten minutes off, under libfaketime: only the database's clock counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.faults import clocks
from tests.faults.fleet import report
from tests.processes import app
from tests.processes.conftest import SHORT, Watch
from tests.support import wait_until

LIBRARY = "libfaketime.so.1"
TEN_MINUTES = 600
LEASE = 12.0
"""Seconds: less than the ten minutes, and long enough that a busy machine renews it."""
NEAR = 60.0
"""Seconds: no clock is read exactly here, and ten minutes are never a minute."""

Run = Callable[..., "subprocess.Popen[str]"]


def library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob(f"*/faketime/{LIBRARY}"))), None)


pytestmark = [
    pytest.mark.skipif(library() is None, reason="libfaketime is missing; apt-get install faketime"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def run(database_url: str, engine: sa.Engine) -> Iterator[Run]:
    """Run clocks.py with a clock that is `off` seconds ahead; the monotonic clock stays true, as it does in life."""
    with engine.begin() as conn:
        conn.exec_driver_sql(app.LEDGER)
    processes: list[subprocess.Popen[str]] = []

    def run_one(off: int, task: str, **options: object) -> subprocess.Popen[str]:
        fake = {"LD_PRELOAD": str(library()), "FAKETIME": f"{off:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        process = subprocess.Popen(
            [sys.executable, clocks.__file__, task, database_url, json.dumps(options)],
            env=os.environ | fake,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run_one
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("producer", [TEN_MINUTES, -TEN_MINUTES], ids=["producer ahead", "producer behind"])
def test_only_the_databases_clock_counts(run: Run, engine: sa.Engine, producer: int) -> None:
    """H84: delay, retry, lease and retention with a producer, and two workers on the other side of the right time."""
    watch = Watch(engine)
    enqueued = json.loads(run(producer, "enqueue").communicate(timeout=60)[0])
    is_off(enqueued["clock"], producer)
    jobs = [(name, id_) for name, ids in enqueued["ids"].items() for id_ in ids]
    for off in (-producer, producer):
        run(off, "work", **SHORT | {"lease": LEASE})
    for _, id_ in jobs:
        wait_until(lambda id_=id_: watch.job(id_).status == "completed", 60)
    for name, id_ in jobs:
        job = watch.job(id_)
        starts = watch.events(id_)
        assert job.stalls == 0, "a live lease was judged ended"
        assert len(starts) == job.attempts == (2 if name == "retries" else 1)
        assert job.finished_at is not None
        assert job.expires_at is not None
        assert (job.expires_at - job.finished_at).total_seconds() == pytest.approx(clocks.RETENTION)
        assert 0 <= (job.finished_at - job.created_at).total_seconds() < NEAR
        first = (starts[0].at - job.created_at).total_seconds()
        last = (starts[-1].at - starts[0].at).total_seconds()
        assert (clocks.DELAY if name == "delayed" else 0) <= first < NEAR
        assert (clocks.DELAY if name == "retries" else 0) <= last < NEAR
    clocks_read = watch.rows("SELECT event FROM ledger WHERE event LIKE 'clock:%'")
    assert len(clocks_read) == 2 * clocks.MANY
    for (event,) in clocks_read:
        assert abs(abs(float(event.removeprefix("clock:")) - time.time()) - TEN_MINUTES) < NEAR, "not faked"
    whose = "ahead" if producer > 0 else "behind"
    report(watch, "clocks 10 minutes off", f"producer {whose}, one worker {-producer:+d} s and one {producer:+d} s")


def is_off(clock: float, off: int) -> None:
    assert abs(clock - time.time() - off) < NEAR, "the clock was not faked"
