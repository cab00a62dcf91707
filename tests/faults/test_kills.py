"""Worker processes that are killed at each step and at random times, or paused at each step and past their lease."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqlane_sa.demo.server import Server
from tests.faults import kills
from tests.faults.fleet import LONG, Fleet
from tests.support import wait_until

pytestmark = pytest.mark.timeout(900 if LONG else 300)

MIX = ["quick", "async", "slow", "retries", "snoozes", "fails", "effect"]
OPTIONS = {"lease": 0.6, "sweep_interval": 0.1, "stall_delay": 0.0, "concurrency": 4}
RUNNING = "SELECT id FROM sqlane_jobs WHERE status = 'running'"
UNENDED = "SELECT id, job_name, status FROM sqlane_jobs WHERE status NOT IN ('completed', 'failed')"
KILLS = 100 if LONG else 10


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(database_url, kills.queue, kills.serve, tmp_path)
    kills.count_releases(fleet)
    yield fleet
    fleet.close()


def enqueue_mix(fleet: Fleet) -> list[str]:
    plain = [fleet.enqueue(name) for name in MIX]
    return [*plain, *(fleet.enqueue("quick", {"keys": ["k"], "seconds": 0.1}) for _ in range(2))]


def finish(fleet: Fleet, ids: list[str]) -> None:
    """The last worker runs to the end, and then every count is right; that some jobs had a key to the end is one."""
    fleet.start("last", **OPTIONS | {"lease": 5.0})
    wait_until(lambda: not fleet.rows(UNENDED), 120, "the end of all jobs")
    kills.check_counts(fleet, ids)
    kills.check_starts(fleet)
    assert not any(fleet.job(id_).mutex_keys for id_ in ids) or fleet.rows("SELECT FROM ledger WHERE event = 'held'")
    for id_ in ids:
        job = fleet.job(id_)
        assert job.status == ("failed" if job.name == "fails" else "completed")
    assert fleet.rows("SELECT FROM sqlane_mutexes WHERE held_until IS NULL") == []


def test_no_step_is_a_bad_one_to_die_at(fleet: Fleet) -> None:
    """Around each operation of the store as the worker runs it: before it, before its commit and after."""
    ids: list[str] = []
    for step in kills.STEPS:
        ids += enqueue_mix(fleet)
        process = fleet.start(step, kill_at=step, **OPTIONS)
        wait_until(lambda process=process: process.poll() is not None, 60, f"the end at {step}: {process.said()}")
        assert process.wait() == -signal.SIGKILL, f"{step}: {process.said()}"
        kills.check_counts(fleet, ids)
    finish(fleet, ids)
    fleet.report("kill -9", f"at each of {len(kills.STEPS)} steps of the worker's operations")


def test_no_step_is_a_bad_one_to_be_paused_at(fleet: Fleet) -> None:
    """Within a transaction, with rows locked: another worker ends all jobs while it lasts. Then they go on."""
    ids: list[str] = []
    paused = []
    for operation in kills.TRANSACTIONS:
        ids += enqueue_mix(fleet)
        process = fleet.start(operation, pause_at=f"{operation} written", **OPTIONS)
        wait_until(lambda process=process: process.paused, 60, f"a pause at {operation}")
        paused.append(process)
    finish(fleet, ids)
    assert all(process.paused for process in paused)
    for process in paused:
        process.send(signal.SIGCONT)
        process.send(signal.SIGTERM)
        assert process.wait() == 0, process.said()
    kills.check_counts(fleet, ids)
    kills.check_starts(fleet)
    fleet.report("SIGSTOP", f"within the transactions of {len(kills.TRANSACTIONS)} operations, until all else was done")


def test_no_time_is_a_bad_one_to_die(fleet: Fleet) -> None:
    """Two workers, one of them killed at some moment of the stream and started again."""
    chance = random.Random(1)
    ids: list[str] = []
    fleet.start("survivor", **OPTIONS)
    for _ in range(KILLS):
        seen = fleet.rows("SELECT count(*) FROM ledger")[0][0]
        process = fleet.start("victim", **OPTIONS)
        ids += enqueue_mix(fleet) + enqueue_mix(fleet)
        more = seen + chance.randrange(30)
        wait_until(lambda more=more: fleet.rows("SELECT count(*) FROM ledger")[0][0] >= more, 60)
        process.kill()
        kills.check_counts(fleet, ids)
    finish(fleet, ids)
    fleet.report("kill -9", f"{KILLS} times at random moments of a stream")


def test_only_what_ran_at_the_kill_runs_again(fleet: Fleet) -> None:
    """A25: killed as handler 50 of 100 returns. What is repeated was held by the process and not yet written."""
    ids = [fleet.enqueue("quick") for _ in range(100)]
    process = fleet.start("victim", kill_after=50, **OPTIONS)
    assert process.wait() == -signal.SIGKILL
    held = {row.id for row in fleet.rows(RUNNING)}
    assert 1 <= len(held) < 50
    finish(fleet, ids)
    again = {id_ for id_ in ids if len(fleet.events(id_)) > 1}
    assert again <= held
    assert all(fleet.job(id_).stalls == (id_ in held) for id_ in ids)


def test_a_worker_without_its_database_ends_in_time(own_server: Server, own_url: str, tmp_path: Path) -> None:
    """A25: PostgreSQL is stopped, then SIGTERM comes."""
    fleet = Fleet(own_url, kills.queue, kills.serve, tmp_path)
    try:
        id_ = fleet.enqueue("slow", {"seconds": 1})
        process = fleet.start(**OPTIONS, shutdown_timeout=1.0)
        fleet.wait_for(id_)
        own_server.stop("immediate")
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        fleet.close()


def test_an_older_success_undoes_no_newer_failure(fleet: Fleet) -> None:
    """A10, A14: paused past its lease; the job fails for good elsewhere; then the first worker's success arrives."""
    id_ = fleet.enqueue("contest", {"seconds": 1}, mutex_keys=["k"])
    first = fleet.start("first", **OPTIONS)
    fleet.wait_for(id_)
    first.send(signal.SIGSTOP)
    second = fleet.start("second", **OPTIONS)
    job = fleet.wait_status(id_, "failed")
    second.kill()
    first.send(signal.SIGCONT)
    fleet.wait_for(id_, "end")
    after = fleet.enqueue("quick", {"keys": ["k"]})
    fleet.completed(after)
    assert fleet.job(id_) == job
    assert (job.stalls, job.attempts) == (1, 1)
    kills.check_counts(fleet, [id_, after])
    assert "lease is lost" in first.said() or "changed nothing" in first.said()
