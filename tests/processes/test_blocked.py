"""Processes that are slow, blocked or short of connections, and keep their jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.processes.conftest import PATIENCE, Start, Watch
from tests.support import long_run, wait_until

Enqueue = Callable[..., str]
LEASE = 1.0


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Every core has a process that computes."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("name", ["sleep", "nap", "block", "patient"])
def test_a_long_job_starts_once(start: Start, watch: Watch, enqueue: Enqueue, name: str) -> None:
    """A15, A17: over several leases, with and without a timeout of many leases, also with the event loop blocked."""
    id_ = enqueue(name, {"seconds": 5 * LEASE})
    start("first")
    start("second")
    watch.wait_for(id_, "end")
    job = watch.wait_status(id_, "completed")
    assert len(watch.events(id_)) == 1
    assert (job.stalls, job.attempts) == (0, 1)


def test_a_held_interpreter_costs_no_second_success(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """A17: no thread of the process can renew while one call in C holds the interpreter for longer than the lease. The
    job may start a second time; only one of the results is accepted."""
    id_ = enqueue("hold_gil", {"seconds": 4 * LEASE})
    start("first")
    start("second", stall_delay=0.0)
    watch.wait_for(id_, "end")
    watch.wait_status(id_, "completed")
    wait_until(lambda: len(watch.events(id_, "end")) == len(watch.events(id_)))
    assert watch.job(id_).attempts == 1


@pytest.mark.usefixtures("busy_cores")
@pytest.mark.parametrize(
    ("runs", "lease", "seconds"), [(1, 3.0, 6), pytest.param(20, 2.0, 30, marks=long_run(timeout=1800))]
)
def test_renewals_come_in_time_on_busy_cores(
    start: Start, watch: Watch, enqueue: Enqueue, runs: int, lease: float, seconds: int
) -> None:
    """A16: 20 jobs over several leases, in two processes; the renewal of a third of a lease is no option."""
    for _ in range(runs):
        ids = [enqueue("sleep", {"seconds": seconds}) for _ in range(20)]
        workers = [start(name, lease=lease, concurrency=10) for name in ("first", "second")]
        for id_ in ids:
            watch.wait_for(id_, "end")
            assert len(watch.events(id_)) == 1
            assert watch.wait_status(id_, "completed").stalls == 0
        for worker in workers:
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
    starts = watch.rows("SELECT count(*) FROM ledger WHERE event = 'start'")[0][0]
    print(f"\nreliability: all cores busy | {runs} x {seconds} s, lease {lease:g} s | {starts} starts")


def test_an_exhausted_pool_costs_no_lease(start: Start, watch: Watch, enqueue: Enqueue) -> None:
    """A18: four handlers want two connections and keep them for several leases; the worker's own are not theirs."""
    ids = [enqueue("pool", {"seconds": 3 * LEASE}) for _ in range(4)]
    start("first", concurrency=4, pool={"pool_size": 2, "max_overflow": 0})
    start("second", names=["quick"])
    running = "SELECT count(*) FROM sqlane_jobs WHERE status = 'running'"
    wait_until(lambda: watch.rows(running)[0][0] == 4)
    for id_ in ids:
        job = watch.wait_status(id_, "completed")
        assert (job.stalls, job.attempts) == (0, 1)
