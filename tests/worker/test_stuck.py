"""Jobs that are to be marked as stuck: one that is locked for now is marked later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqlane_sa import Queue
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker import stuck as stuck_module
from sqlane_sa.worker.running import TIMEOUT, RunningJob, RunningJobs
from sqlane_sa.worker.stuck import PAUSE, StuckJobs
from tests.worker.clock import Clock


class NotAvailable(Exception):
    sqlstate = "55P03"


class Locked:
    @contextmanager
    def transaction(self) -> Iterator[None]:
        raise OperationalError("UPDATE", {}, NotAvailable())
        yield


def test_one_whose_marking_met_a_lock_is_marked_after_a_pause(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart, where the batch had failed: forgotten, it would run on past its timeout, and nobody would see it."""
    clock = Clock().rules(monkeypatch, stuck_module)
    now = datetime.now(UTC)
    claimed = ClaimedJob("id", "n", 0, 5, 0, 3, None, None, "t", now, 0.0, 0, now, "null")
    job = RunningJob(claimed, queue.define("n").definition, clock.now, 60.0)
    job.cancel(TIMEOUT)
    database: Any = Locked()
    stuck = StuckJobs(database, queue.tables, RunningJobs())
    stuck.mark_apart([job])
    assert stuck.take(clock.now) == []
    assert stuck.take(clock.now + PAUSE) == [job]
