"""A process that was paused for longer than its leases: what it would start then is somebody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from sqlane_sa import Queue
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Completed
from sqlane_sa.worker.deadlines import UNLIMITED
from sqlane_sa.worker.execution import Execution
from sqlane_sa.worker.handlers import Handlers
from sqlane_sa.worker.running import LEASE_LOST, RunningJob, RunningJobs
from sqlane_sa.worker.timer import Timer
from tests.support import wait_until


@pytest.fixture
def jobs() -> RunningJobs:
    return RunningJobs()


@pytest.fixture
def handlers(queue: Queue, jobs: RunningJobs) -> Iterator[Handlers]:
    """With one slot."""
    nowhere: Any = None
    given_up: list[str] = []
    execution = Execution(queue, nowhere, nowhere, UNLIMITED)
    made = Handlers(execution, jobs, 1, Timer(jobs, 1).watch, given_up.append)
    yield made
    made.stop()
    assert given_up == []


@pytest.fixture
def claimed(queue: Queue, jobs: RunningJobs) -> Callable[[str, str], RunningJob]:
    def make(name: str, payload: str) -> RunningJob:
        now = datetime.now(UTC)
        job = ClaimedJob(payload, name, 0, 5, 0, 3, None, None, "token", now, 0.0, 0, now, payload)
        made = RunningJob(job, queue.definitions[name], time.monotonic(), 60.0)
        jobs.add(made)
        return made

    return make


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_job_whose_lease_ended_while_it_waited_for_its_slot_does_not_start(
    queue: Queue, handlers: Handlers, jobs: RunningJobs, claimed: Callable[[str, str], RunningJob], kind: str
) -> None:
    """Nobody has to have noticed the pause; nothing is written of it, and the job behind it has the slot."""
    ran: list[int] = []
    go = threading.Event()

    async def runs(payload: int) -> None:
        ran.append(payload)

    queue.job("first")(lambda payload: go.wait(60) and None)
    queue.job("runs", timeout=60)(runs if kind == "async def" else ran.append)
    first, late, behind = claimed("first", "1"), claimed("runs", "2"), claimed("runs", "3")
    handlers.submit([first, late, behind])
    late.lease_end = time.monotonic()
    go.set()
    wait_until(lambda: len(jobs.finished) == 3)
    assert ran == [3]
    assert list(jobs.finished) == [(first, Completed()), (late, None), (behind, Completed())]
    assert late.cancelled == LEASE_LOST
