"""SIGTERM at random times: once, twice, thrice."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import kills
from tests.faults.fleet import LONG, Fleet
from tests.support import wait_until

pytestmark = pytest.mark.timeout(900 if LONG else 300)

TIMES = 200 if LONG else 20
STREAM = ["quick", "async", "effect", "quick", "async", "effect", "slow"]
RUNNING = "SELECT id FROM sqlane_jobs WHERE status = 'running'"
UNENDED = "SELECT id FROM sqlane_jobs WHERE status <> 'completed'"
COUNT = "SELECT count(*) FROM ledger"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(database_url, kills.queue, kills.serve, tmp_path)
    kills.count_releases(fleet)
    yield fleet
    fleet.close()


def start_and_wait(fleet: Fleet, chance: random.Random, **options: object) -> list[str]:
    """Enqueue, start a worker and let it come to some moment of the stream; the ids."""
    ids = [fleet.enqueue(name, {"seconds": 0.1, "keys": ["k"] if chance.random() < 0.3 else None}) for name in STREAM]
    events = fleet.rows(COUNT)[0][0] + chance.randrange(2 * len(STREAM))
    fleet.start(concurrency=3, **options)
    wait_until(lambda: fleet.rows(COUNT)[0][0] >= events or not fleet.rows(UNENDED), 60)
    return ids


def finish(fleet: Fleet, ids: list[str]) -> None:
    fleet.start("last")
    wait_until(lambda: not fleet.rows(UNENDED), 60, "the end of all jobs")
    kills.check_counts(fleet, ids)
    kills.check_starts(fleet)


def test_no_time_is_a_bad_time_for_a_signal(fleet: Fleet) -> None:
    """K120, K121: exit code 0, nothing is left running, no attempt or stall is used, and each job ran once. A process
    that does not work yet ends by the signal itself."""
    chance = random.Random(3)
    ids: list[str] = []
    for _ in range(TIMES):
        before = fleet.rows(COUNT)[0][0]
        ids += start_and_wait(fleet, chance)
        process = fleet.processes[-1]
        process.send(signal.SIGTERM)
        code = process.wait()
        assert code == 0 or (code == -signal.SIGTERM and fleet.rows(COUNT)[0][0] == before)
        assert fleet.rows(RUNNING) == []
        kills.check_counts(fleet, ids)
    finish(fleet, ids)
    for id_ in ids:
        job = fleet.job(id_)
        assert (job.stalls, job.attempts, len(fleet.events(id_))) == (0, 1, 1)
    fleet.report("SIGTERM", f"at {TIMES} moments of a stream")


@pytest.mark.parametrize("signals", [2, 3], ids=["twice", "thrice"])
def test_impatient_signals_lose_nothing(fleet: Fleet, signals: int) -> None:
    """K121: the second skips the wait for handlers and hands their jobs back; the third leaves them to their leases."""
    chance = random.Random(signals)
    ids: list[str] = []
    left = False  # to their leases, by a process that was given a third signal
    for _ in range(TIMES // 4):
        ids += start_and_wait(fleet, chance, shutdown_timeout=3600.0)
        process = fleet.processes[-1]
        for _ in range(signals):
            process.send(signal.SIGTERM)
        code = process.wait()
        assert code in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
        left = left or code == 128 + signal.SIGTERM
        assert left or fleet.rows(RUNNING) == []
        kills.check_counts(fleet, ids)
    finish(fleet, ids)
    fleet.report(f"SIGTERM {'twice' if signals == 2 else 'thrice'}", f"at {TIMES // 4} moments of a stream")
