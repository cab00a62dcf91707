"""Which results wait, and which are tried again: nothing of it needs the database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sqlane_sa import Queue
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.values.outcome import Completed
from sqlane_sa.worker.results import Results
from sqlane_sa.worker.running import RunningJob, RunningJobs

NOWHERE: Any = None


@pytest.fixture
def jobs() -> RunningJobs:
    return RunningJobs()


@pytest.fixture
def results(queue: Queue, jobs: RunningJobs) -> Results:
    return Results(NOWHERE, queue, jobs)


def finish(queue: Queue, jobs: RunningJobs, name: str) -> RunningJob:
    now = datetime.now(UTC)
    claimed = ClaimedJob(name, "plain", 0, 5, 0, 3, None, None, "t", now, 0.0, 0, now, "null")
    job = RunningJob(claimed, queue.define(name).definition, 0.0, 60.0)
    jobs.add(job)
    jobs.finish(job, Completed())
    return job


def test_the_loop_is_not_called_for_a_few_while_many_come(queue: Queue) -> None:
    """But for the first one as soon as they come slower."""
    jobs = RunningJobs()
    jobs.waiting = jobs.gathering = jobs.writer_ready = True
    finish(queue, jobs, "for the writer")
    assert not jobs.wake.is_set() and not jobs.awaits_loop
    jobs.gathering = False
    finish(queue, jobs, "slow")
    assert jobs.wake.is_set() and jobs.awaits_loop
    assert len(jobs.take_for_loop()) == 2


def test_a_few_wait_ten_milliseconds_at_most(queue: Queue, jobs: RunningJobs, results: Results) -> None:
    """They are the loop's when it claims anyway, and when no more come."""

    def take(now: float, *, many_come: bool = True, claiming: bool = False) -> int:
        return len(results.take(now, many_come=many_come, claiming=claiming))

    jobs.writer_ready = True
    finish(queue, jobs, "first")
    assert take(100.0) == 1  # for a start
    finish(queue, jobs, "second")
    assert [take(100.001), take(100.009), take(100.01)] == [0, 0, 1]
    finish(queue, jobs, "third")
    assert [take(100.011), take(100.012, claiming=True)] == [0, 1]
    finish(queue, jobs, "last")
    assert [take(100.013), take(100.014, many_come=False)] == [0, 1]


def test_what_was_passed_over_is_tried_again_once(queue: Queue, jobs: RunningJobs, results: Results) -> None:
    """With the next batch, and not twice in it; then it is late."""
    locked, done = finish(queue, jobs, "locked"), finish(queue, jobs, "done")
    taken = results.take(100.0, many_come=False, claiming=False)
    results.passed_over([(locked, Completed())], 100.0)
    assert results.forget(taken) == [(done, Completed())]
    assert results.write_late() == []
    assert jobs.snapshot() == [locked]
    taken = results.take(101.0, many_come=False, claiming=False)
    assert taken == [(locked, Completed())]
    results.passed_over([(locked, Completed())], 101.0)
    assert results.forget(taken) == []
    assert jobs.snapshot() == [locked]
    assert not jobs.finished
    assert results.late_at == 101.0


def test_what_the_writer_passed_over_goes_with_the_next_batch(
    queue: Queue, jobs: RunningJobs, results: Results
) -> None:
    """Also while a few results wait for more."""
    jobs.writer_ready = True
    job = finish(queue, jobs, "locked")
    jobs.passed_over.extend(results.take(100.0, many_come=True, claiming=False))  # type: ignore[arg-type]
    assert results.take(100.001, many_come=True, claiming=False) == [(job, Completed())]
