"""Whether a worker sees that its files were closed under it. What it then does: tests/faults/test_exits.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sqlane_sa import Queue
from sqlane_sa.worker.descriptors import Canary
from tests.support import wait_until


@pytest.fixture
def canary() -> Iterator[Canary]:
    made = Canary()
    yield made
    made.close()


def other_file(number: int) -> None:
    """In its place, in one step: no other thread gets the number."""
    end, other = os.pipe()
    os.dup2(end, number)
    os.close(end)
    os.close(other)


def test_it_lives_while_it_is_open(canary: Canary) -> None:
    assert canary.alive


def test_it_is_dead_when_it_is_closed(canary: Canary) -> None:
    os.close(canary._number)
    assert not canary.alive


def test_its_own_end_is_no_alarm(canary: Canary) -> None:
    canary.close()
    assert canary.alive
    with pytest.raises(OSError):
        os.fstat(canary._number)
    canary.close()


def test_it_is_dead_when_its_number_is_another_files(canary: Canary) -> None:
    other_file(canary._number)
    assert not canary.alive


def test_it_closes_no_other_file(canary: Canary) -> None:
    other_file(canary._number)
    canary.close()
    os.close(canary._number)


def test_a_worker_whose_thread_outlasts_its_stop_leaves_no_files(
    queue: Queue, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a slow database; the files of the other threads are closed all the same, and nobody is alarmed."""
    queue.job("any")(lambda payload: None)
    worker = work()
    parts = worker._parts
    (sweeper,) = [service for service in parts.services if service.name == "sweeper"]
    monkeypatch.setattr(sweeper, "join", lambda timeout: False)
    bells = [parts.jobs.wake, parts.listener._called]
    wait_until(lambda: all(bell._pair for bell in bells))
    pairs = [each for bell in bells for each in bell._pair]
    worker.stop()
    assert [each.fileno() for each in pairs] == [-1] * 4
    with pytest.raises(OSError):
        os.fstat(parts._canary._number)
    parts._run_timer()
    assert worker.failure is None
