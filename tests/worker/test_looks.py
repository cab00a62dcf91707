"""When the loop looks next, and from where: what takes long is done less often. No database, and no real time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sqlane_sa.store import Lane
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker import looks as looks_module
from sqlane_sa.worker.looks import Looks
from tests.worker.clock import Clock

PLAIN, KEYED = Lane("n", 0, False, -1), Lane("n", 0, True, -1)
LONG = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rules(monkeypatch, looks_module)


def job() -> ClaimedJob:
    now = datetime.now(UTC)
    return ClaimedJob("id", "n", 0, 5, 0, 3, None, None, "t", now, 0.0, 0, now, "null")


def starts_from_the_first(clock: Clock, seconds: float, full: float, marked: float) -> int:
    """How many claims from a long backlog begin at its start; each takes that long, those at a mark less."""
    looks = Looks(["n"], LONG)
    looks.probed(clock.now, [PLAIN])
    end, count = clock.now + seconds, 0
    while clock.now < end:
        began = clock.now
        at_mark = bool(looks.low_water_marks())
        count += not at_mark
        clock.now += marked if at_mark else full
        looks.claimed([("n", 0, 1)], [job()], began, supposed=False, marked=True)
    return count


def test_a_backlog_is_claimed_from_its_start_about_once_a_second(clock: Clock) -> None:
    assert 50 <= starts_from_the_first(clock, 60.0, full=0.005, marked=0.005) <= 61


def test_a_scan_from_the_start_that_takes_long_takes_a_twentieth_of_the_time(clock: Clock) -> None:
    """0.5 s each, past what cannot be vacuumed: every 10 s then."""
    assert 55 <= starts_from_the_first(clock, 600.0, full=0.5, marked=0.005) <= 61


def test_a_claim_that_did_not_begin_at_the_marks_sets_none(clock: Clock) -> None:
    looks = Looks(["n"], LONG)
    looks.probed(clock.now, [PLAIN])
    looks.claimed([("n", 0, 1)], [job()], clock.now, supposed=False, marked=False)
    assert looks.low_water_marks() == {}


def probes(clock: Clock, seconds: float, takes: float, lanes: list[Lane], poll_interval: float = LONG) -> int:
    looks = Looks(["n"], poll_interval)
    end, count = clock.now + seconds, 0
    while clock.now < end:
        began = clock.now
        clock.now += takes
        looks.probed(began, lanes)
        count += 1
        clock.now = max(clock.now, looks.probe_at)
    return count


def test_a_busy_worker_probes_twenty_times_a_second(clock: Clock) -> None:
    assert 180 <= probes(clock, 10.0, 0.001, [PLAIN]) <= 200


def test_probes_that_take_long_take_a_twentieth_of_the_time(clock: Clock) -> None:
    assert 45 <= probes(clock, 100.0, 0.1, [PLAIN]) <= 50


def test_no_probe_waits_longer_than_the_poll_interval(clock: Clock) -> None:
    assert 45 <= probes(clock, 100.0, 1.0, [PLAIN], poll_interval=1.0) <= 51


def test_an_idle_worker_probes_once_a_poll_interval(clock: Clock) -> None:
    assert 100 <= probes(clock, 100.0, 0.001, [], poll_interval=1.0) <= 112


def keyed_looks(clock: Clock, seconds: float, takes: float, *, asleep: bool, next_ms: Any = None) -> int:
    looks = Looks(["n"], 5.0)
    looks.probed(clock.now, [KEYED])
    end, count = clock.now + seconds, 0
    while clock.now < end:
        began = clock.now
        clock.now += takes
        looks.rest_keyed(began, next_ms, asleep)
        count += 1
        clock.now = max(clock.now, looks.keyed_at)
    return count


def test_looks_at_jobs_with_keys_leave_the_time_to_the_others(clock: Clock) -> None:
    """A pause at the least; and a sixth of the time at most."""
    assert 450 <= keyed_looks(clock, 10.0, 0.001, asleep=False) <= 500
    assert 160 <= keyed_looks(clock, 100.0, 0.1, asleep=False) <= 168


def test_a_sleeper_looks_at_them_when_something_is_due_and_not_before(clock: Clock) -> None:
    assert keyed_looks(clock, 100.0, 0.001, asleep=True) <= 21
    assert 95 <= keyed_looks(clock, 100.0, 0.001, asleep=True, next_ms=1000) <= 101


def test_a_probe_is_put_off_once_and_not_for_a_lane_that_is_due(clock: Clock) -> None:
    looks = Looks(["n"], LONG)
    looks.probed(clock.now, [])
    for later in (0.5, 2.0):  # the second wake-up does not put it off again
        looks.at_once()
        looks.not_before(clock.now + later)
        assert looks.probe_at == clock.now + 0.5
    looks.probed(clock.now + 0.5, [PLAIN])
    looks.at_once()
    looks.not_before(clock.now + 1.0)
    assert looks.probe_at == 0.0
