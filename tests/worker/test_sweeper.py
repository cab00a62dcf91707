"""A round of the sweeper: how much at once, how often, and what is tried last. The store is played by the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqlane_sa import Queue, store
from sqlane_sa.worker.running import RunningJobs
from sqlane_sa.worker.sweeper import BATCH, Sweeper


class Nowhere:
    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield


class Cancelled(Exception):
    sqlstate = "57014"


def error(cause: Exception) -> OperationalError:
    return OperationalError("DELETE", {}, cause)


@pytest.fixture
def sweeper(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Sweeper:
    monkeypatch.setattr(store, "wake", lambda *_: None)
    database: Any = Nowhere()
    return Sweeper(database, queue, RunningJobs(), interval=1.0, lease=30.0, stall_delay=1.0)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of each recovery; the one named "cut" loses the connection."""
    tries: list[list[str]] = []

    def recover(*_: Any, ids: Sequence[str], **__: Any) -> list[Any]:
        tries.append(list(ids))
        if "cut" in ids:
            raise error(ConnectionError("gone"))
        return []

    monkeypatch.setattr(store, "recover_stale_many", recover)
    return tries


def find(monkeypatch: pytest.MonkeyPatch, ids: list[str]) -> None:
    monkeypatch.setattr(store, "find_stale", lambda *_, **__: ids)


def test_stale_jobs_come_back_a_hundred_at_once(
    sweeper: Sweeper, tried: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(n) for n in range(250)]
    find(monkeypatch, ids)
    sweeper.recover()
    assert [len(part) for part in tried] == [100, 100, 50]
    assert [id_ for part in tried for id_ in part] == ids


def test_the_one_at_which_the_connection_was_lost_is_tried_last(
    sweeper: Sweeper, tried: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    find(monkeypatch, ["cut", "b", "c"])
    for _ in range(3):
        with pytest.raises(OperationalError):
            sweeper.recover()
    assert tried == [["cut", "b", "c"], ["cut"], ["b"], ["c"], ["cut"]]


def test_a_round_of_full_batches_has_an_end(sweeper: Sweeper) -> None:
    """A long backlog of one kind does not keep the others waiting for ever."""
    limits: list[int] = []

    def full(limit: int) -> int:
        limits.append(limit)
        return limit

    sweeper._repeat(full)
    assert limits == [BATCH] * 50


def test_a_batch_is_halved_at_a_statement_timeout_and_grows_again(
    sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def at_most(limit: int) -> int:
        limits.append(limit)
        if limit > 300:
            raise error(Cancelled())
        return 0

    sweeper._repeat(at_most)
    assert limits == [1000, 500, 250]
    sweeper._repeat(at_most)
    assert limits[3:] == [250]
    for part in ("recover", "_sweep_mutexes", "_sweep_lines", "_delete_expired"):
        monkeypatch.setattr(sweeper, part, lambda limit=0: 0)
    sweeper.run_once()
    sweeper._repeat(at_most)
    assert limits[4:] == [500, 250]


def test_lines_are_swept_on_from_where_the_last_round_ended(sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start each time, what is past the first thousand places would stay for ever; and so would sleepers."""
    began: list[str] = []
    sleepers: list[Any] = []
    ends = iter(["k", "x", ""])

    def sweep(*_: Any, after_key: str, **__: Any) -> store.WaitsSweep:
        began.append(after_key)
        return store.WaitsSweep(0, next(ends))

    monkeypatch.setattr(store, "sweep_waits", sweep)
    monkeypatch.setattr(store, "sweep_sleepers", lambda *where: sleepers.append(where))
    for _ in range(3):
        sweeper._sweep_lines()
    assert (began, sweeper._after_key) == (["", "k", "x"], "")
    assert len(sleepers) == 3
