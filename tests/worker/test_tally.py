"""What a worker says of jobs that simply ran: a line for many at INFO, one for each at DEBUG, and nothing above."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from sqlane_sa import Queue
from sqlane_sa.values.outcome import Completed, Released
from sqlane_sa.worker import tally
from sqlane_sa.worker.running import LEASE_LOST
from sqlane_sa.worker.tally import Tally


class Job:
    """As much of a running job as is looked at."""

    id = "1"
    cancelled: str | None = None
    claimed: Any = type("Claimed", (), {"name": "n", "attempt": 1})


def lost() -> Job:
    job = Job()
    job.cancelled = LEASE_LOST
    return job


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "sqlane_sa.worker")
    return lambda: [record.getMessage() for record in caplog.records if " completed" in record.getMessage()]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING])
def test_a_worker_says_what_it_did(
    queue: Queue,
    run: Callable[..., None],
    enqueue: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    said: Callable[[], list[str]],
    level: int,
) -> None:
    """Of all kinds of handlers, and not of the failures, of which there are lines already."""
    caplog.set_level(level, "sqlane_sa.worker")

    @queue.job("plain")
    def plain(payload: object) -> None: ...

    @queue.job("keyed", mutex_keys=lambda payload: "k")
    async def keyed(payload: object) -> None: ...

    @queue.job("own", transactional=True)
    def own(payload: object) -> None: ...

    @queue.job("failing", max_attempts=1)
    def failing(payload: object) -> None:
        raise ValueError("no")

    ids = [enqueue(name) for name in ("plain", "keyed", "own")]
    enqueue("failing")
    run()
    counted = [line for line in said() if "since the start" in line]
    single = [line for line in said() if line not in counted]
    assert [line.partition(" jobs completed within ")[0] for line in counted] == (
        ["3"] if level <= logging.INFO else []
    )
    assert all(line.endswith(" s, 3 since the start") for line in counted)
    names = zip(ids, ("plain", "keyed", "own"), strict=True)
    expected = {f"job {id_} ({name}) completed, attempt 1" for id_, name in names} if level <= logging.DEBUG else set()
    assert set(single) == expected


def test_a_line_when_completions_pause(said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one not before a while has passed."""
    monkeypatch.setattr(tally, "QUIET", 0.01)
    one = Tally()
    one.count([(Job(), Completed()), (Job(), None), (Job(), Released(0.0)), (lost(), Completed())])  # type: ignore[list-item]
    assert one.run_once() == tally.PAUSE
    one.count([(Job(), Completed())])  # type: ignore[list-item]
    one.run_once()
    assert [re.sub(r"within .* s, ", "", line) for line in said()] == [
        "2 jobs completed 2 since the start",
        "1 job completed, 3 since the start",
    ]
    one.say()
    assert len(said()) == 2


def test_a_line_each_minute_while_they_go_on(said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    one = Tally()
    monkeypatch.setattr(tally, "LONGEST", 0.0)
    monkeypatch.setattr(tally, "QUIET", 3600.0)
    one.count([(Job(), Completed())])  # type: ignore[list-item]
    one.run_once()
    assert len(said()) == 1


def test_a_worker_that_stops_does_not_wait_for_it() -> None:
    one = Tally()
    one.stop()
    one.run_once()


def test_with_the_level_off_nothing_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sqlane_sa.worker")
    Tally().count([object()])  # type: ignore[list-item]
