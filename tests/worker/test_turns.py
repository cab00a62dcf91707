"""Turns of the loop one by one: driven by hand over the real database, with handlers that end when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, OperationalError

from sqlane_sa import Job, Queue, store
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Completed
from sqlane_sa.worker import hints, looks, results, sleep
from sqlane_sa.worker import loop as loop_module
from sqlane_sa.worker.database import Connector
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.loop import HAND_BACK_AFTER, MAX_UNWRITTEN, PROBE_AFTER, Loop
from sqlane_sa.worker.running import RunningJob, RunningJobs
from tests.worker.clock import Clock

Read = Callable[[str], Job]
HOURS = 3600.0
SLOTS = 10


class Slots:
    """As `Handlers`: what is submitted runs until the test finishes it."""

    concurrency = SLOTS

    def __init__(self) -> None:
        self.started: list[RunningJob] = []
        self.waiting: list[RunningJob] = []
        self.active = 0
        self.refill_at = -1

    def submit(self, jobs: Sequence[RunningJob]) -> None:
        self.started += jobs

    def progress(self) -> tuple[int, float]:
        return 0, 0.0

    @property
    def oldest_waiting(self) -> float | None:
        return self.waiting[0].queued_at if self.waiting else None

    def take_waiting(self) -> list[RunningJob]:
        taken, self.waiting = self.waiting, []
        return taken


@pytest.fixture
def jobs() -> RunningJobs:
    return RunningJobs()


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rules(monkeypatch, loop_module, looks, sleep, hints, results)


@pytest.fixture
def loop(
    engine: sa.Engine, queue: Queue, jobs: RunningJobs, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loop]:
    queue.define("plain")
    queue.define("keyed", mutex_keys=["k"])
    connector = Connector(engine, UNLIMITED)
    database = connector.database()
    by: Any = {"worker_id": "w", "lease": 60.0, "poll_interval": HOURS, "wakeups": True}
    yield Loop(database, queue, jobs, slots, ["plain", "keyed"], **by)  # type: ignore[arg-type]
    database.close()
    connector.close()


@pytest.mark.parametrize("kind", [OperationalError, DataError], ids=["outage", "its rows"])
def test_what_is_completed_before_a_claim_that_fails_is_written_once(
    loop: Loop, jobs: RunningJobs, slots: Slots, enqueue: Any, job: Read, caplog: Any,
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception],
) -> None:  # fmt: skip
    """Jobs with keys are: their results are not tried again, those without are, and the line goes on."""
    first, behind, plain = enqueue("keyed"), enqueue("keyed"), enqueue("plain")
    loop.turn()
    assert sorted(one.id for one in slots.started) == sorted([first, plain])
    written: list[str] = []
    complete_keyed, complete_and_claim = store.complete_keyed, store.complete_and_claim

    def noted(conn: Any, tables: Any, *, jobs: Any) -> Any:
        written.extend(one.id for one in jobs)
        return complete_keyed(conn, tables, jobs=jobs)

    def fails(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(store, "complete_and_claim", complete_and_claim)
        raise kind("UPDATE", {}, Exception("no"))

    monkeypatch.setattr(store, "complete_keyed", noted)
    monkeypatch.setattr(store, "complete_and_claim", fails)
    for one in list(slots.started):
        jobs.finish(one, Completed())
    if kind is OperationalError:
        with pytest.raises(OperationalError):
            loop.turn()
        assert (job(first).status, job(plain).status) == ("completed", "running")
        assert len(jobs) == 2
    loop.turn()
    assert (job(first).status, job(plain).status) == ("completed", "completed")
    assert written == [first]
    assert "changed nothing" not in caplog.text
    loop.turn()
    assert [one.id for one in jobs.snapshot()] == [behind]
    assert not jobs.finished


def test_what_runs_here_already_is_not_started_by_a_recall(
    loop: Loop, jobs: RunningJobs, slots: Slots, enqueue: Any, engine: sa.Engine, queue: Queue
) -> None:
    """What is in doubt is a token, and that of a whole claim: its other jobs are."""
    enqueue("plain")
    loop.turn()
    (known,) = slots.started
    lost = enqueue("plain")
    with engine.begin() as conn:
        by: Any = {"lock_token": known.lock_token, "locked_by": "w", "lease": 60}
        store.claim(conn, queue.tables, candidate_ids=[lost], **by)
    loop._claims._in_doubt.append(known.lock_token)
    loop.turn()
    assert [one.id for one in slots.started] == [known.id, lost]
    assert len(jobs) == 2
    assert not loop._claims.in_doubt


def test_the_probe_after_a_wake_up_is_put_off(
    loop: Loop, jobs: RunningJobs, slots: Slots, clock: Clock, enqueue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two milliseconds: a short handler has ended by then, and one probe is enough."""
    probes: list[float] = []
    waits: list[float] = []
    probe_lanes = store.probe_lanes

    def noted(*arguments: Any) -> Any:
        probes.append(clock.now)
        return probe_lanes(*arguments)

    monkeypatch.setattr(store, "probe_lanes", noted)
    monkeypatch.setattr(loop, "_wait", lambda seconds, file, full: waits.append(seconds))
    enqueue("plain")
    loop.run_once()
    jobs.finish(slots.started[0], Completed())
    for _ in range(10):
        clock.now += 1.0  # past the looks of one who has just fallen asleep
        loop.run_once()
    assert loop.asleep and loop.idle.is_set()
    probes.clear()
    enqueue("plain")
    loop.wake()
    loop.run_once()
    assert len(slots.started) == 2
    assert 0 < waits[-1] <= PROBE_AFTER + 1e-6
    loop.run_once()
    assert probes == []
    clock.now += 0.01
    loop.run_once()
    assert len(probes) == 1


def test_what_has_ended_is_written_by_the_next_turn(
    loop: Loop, jobs: RunningJobs, slots: Slots, clock: Clock, enqueue: Any, job: Read
) -> None:
    """A25: however few they are, and though no time has passed since the last ones."""
    ids = [enqueue("plain") for _ in range(SLOTS)]
    loop.turn()
    assert len(slots.started) == SLOTS
    for part in (slots.started[:1], slots.started[1:3], slots.started[3:]):
        for one in part:
            jobs.finish(one, Completed())
        loop.turn()
        assert {job(one.id).status for one in part} == {"completed"}
    assert {job(id_).status for id_ in ids} == {"completed"}
    assert len(jobs) == 0


@pytest.mark.parametrize(("more", "claims"), [(-1000, 10), (5, 5), (10, 0), (500, 0)])
def test_claims_end_while_many_results_are_unwritten(
    loop: Loop, jobs: RunningJobs, slots: Slots, queue: Queue, engine: sa.Engine, more: int, claims: int
) -> None:
    """2,000: a process that dies runs no more than these again."""
    assert MAX_UNWRITTEN == 2_000
    now = datetime.now(UTC)
    claimed = ClaimedJob("id", "plain", 0, 5, 0, 3, None, None, "t", now, 0.0, 0, now, "null")
    definition = queue.definitions["plain"]
    jobs.add(*(RunningJob(claimed, definition, 0.0, 60.0) for _ in range(MAX_UNWRITTEN + more)))
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("plain") for _ in range(20)])
    loop.turn()
    assert len(slots.started) == claims


def test_what_waits_for_a_slot_for_a_second_is_handed_back(
    loop: Loop, jobs: RunningJobs, slots: Slots, clock: Clock, enqueue: Any, job: Read
) -> None:
    """And no sooner."""
    id_ = enqueue("plain")
    loop.turn()
    slots.waiting = slots.started[:]
    clock.now += 0.9
    loop.turn()
    assert (job(id_).status, len(jobs)) == ("running", 1)
    assert 0.9 < HAND_BACK_AFTER < 1.5
    clock.now += 0.6
    slots.active = SLOTS  # so that it is not claimed again
    loop.turn()
    assert (job(id_).status, job(id_).attempts, len(jobs)) == ("pending", 0, 0)
