"""What a load has to recover within, and the negative controls of the check."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.beat import PAUSE, Beat, processor_waits
from tests.faults.load import OPTIONS, Load


@pytest.fixture
def under(tmp_path: Path) -> Iterator[Load]:
    """Never started."""
    load = Load("postgresql+psycopg://localhost:1/none", tmp_path, ledger=False, stall_delay=0.5)
    yield load
    load.close()


def test_the_bound_is_what_is_promised(under: Load) -> None:
    """Lease, linger, sweep, stall delay, back-off, poll and a second; nothing for the machine."""
    promised = OPTIONS | {"stall_delay": 0.5}
    parts = [promised[name] for name in ("lease", "lease", "sweep_interval", "stall_delay", "poll_interval")]
    assert under.bound == pytest.approx(sum(parts) + 1)


@pytest.mark.parametrize(
    ("late", "withheld", "kept"), [(-0.1, 0, True), (0.1, 0, False), (2, 1.9, False), (2, 3, True)]
)
def test_a_late_recovery_is_a_fault_unless_its_machine_was_busy(
    under: Load, late: float, withheld: float, kept: bool
) -> None:
    assert under.is_in_time(under.bound + late, withheld) is kept


@pytest.mark.parametrize(("late", "withheld"), [([0, 0, 0], 0), ([0, 1.5, 0.25], 1.75), ([-0.001, 2, 0], 2)])
def test_a_beat_adds_up_how_late_it_was(late: list[float], withheld: float) -> None:
    """Early ones make up for nothing, and the pause in which it is stopped counts like every other."""
    now = 0.0
    rest = iter(late)

    def pause(seconds: float) -> bool:
        nonlocal now
        now += seconds + next(rest)
        return now >= PAUSE * len(late) + sum(late) - 1e-9

    beat = Beat(lambda: now)
    beat.run(pause)
    assert beat.withheld == pytest.approx(withheld)


def test_waits_for_a_processor_are_read_where_there_are_any() -> None:
    """Of this process they only grow; one that is gone has none."""
    before = processor_waits([os.getpid()])
    assert 0 <= before <= processor_waits([os.getpid()])
    assert processor_waits([None]) == 0
