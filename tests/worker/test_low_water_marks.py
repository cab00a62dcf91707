"""Low-water marks: where the next claim from a lane with a backlog begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.store import Lane
from sqlane_sa.worker.lanes import Lanes

PLACE = (datetime(2026, 1, 1, tzinfo=UTC), "a")
LATER = (datetime(2026, 1, 2, tzinfo=UTC), "b")


def due_lanes() -> Lanes:
    lanes = Lanes(["n"])
    lanes.refresh([Lane("n", 0, False, -1)], now=100.0)
    return lanes


def test_a_mark_moves_on_and_ends() -> None:
    lanes = due_lanes()
    assert lanes.low_water_marks(100) == {}
    lanes.set_low_water_mark("n", 0, PLACE, 101)
    lanes.set_low_water_mark("n", 0, LATER, 102)
    assert lanes.low_water_marks(100.9) == {("n", 0): LATER}
    assert lanes.low_water_marks(101.1) == {}, "it counts from the first claim that began at the start"


def test_a_lane_is_empty_only_when_a_claim_from_its_start_says_so() -> None:
    lanes = due_lanes()
    lanes.set_low_water_mark("n", 0, PLACE, 101)
    lanes.exhausted("n", 0)
    assert (lanes.share(5, 100.5), lanes.low_water_marks(100.5)) == ([("n", 0, 5)], {})
    lanes.exhausted("n", 0)
    assert lanes.share(5, 100.5) == []


def test_what_comes_in_before_the_mark_runs_too(
    queue: Queue, engine: sa.Engine, enqueue: Any, run: Any, monkeypatch: Any, sql: Any
) -> None:
    """A backlog, and jobs that commit late, or are put back, with times before its end."""
    ran: list[str] = []
    begins: list[dict[Any, Any]] = []

    @queue.job("n")
    def n(payload: Any) -> None:
        ran.append(payload)
        if payload == 300:
            with engine.begin() as conn:
                past = datetime.now(UTC) - timedelta(days=1)
                queue.enqueue(conn, "n", "late", run_at=past)

    turn = store.complete_and_claim

    def noted(*arguments: Any, **options: Any) -> store.Turn:
        begins.append(options["after"])
        return turn(*arguments, **options)

    monkeypatch.setattr(store, "complete_and_claim", noted)
    with engine.begin() as conn:
        queue.enqueue_many(conn, (queue.new("n", i) for i in range(3000)))
    run(lease=60, poll_interval=1)
    assert any(begins), "claims began at marks"
    assert len(ran) == 3001
    assert set(ran) == {*range(3000), "late"}
