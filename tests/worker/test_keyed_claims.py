"""What a claim of jobs with keys looks at, and in which order. The store is played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqlane_sa import Queue, store
from sqlane_sa.store.claim_keyed import KeyedClaim
from sqlane_sa.store.lines import FreeLines
from sqlane_sa.values.job import ClaimedJob
from sqlane_sa.worker import keyed as keyed_module
from sqlane_sa.worker.claims import Claims
from sqlane_sa.worker.keyed import KeyedClaims, KeyedLook
from tests.worker.clock import Clock


class Nowhere:
    @contextmanager
    def statement(self) -> Iterator[None]:
        yield


class Played:
    """A store in which these keys can go on; `said` is what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[tuple[str, int]] = []
        self.window: list[ClaimedJob] = []
        self.short = ["n"]
        self.free: set[str] = set()
        self.walked: list[FreeLines] = []
        for name in ("claim_keyed", "claim_heads", "find_free_lines", "next_keyed"):
            monkeypatch.setattr(store, name, getattr(self, name))

    def claim_keyed(self, conn: Any, tables: Any, *, limit: int, **_: Any) -> KeyedClaim:
        self.said.append(("window", limit))
        return KeyedClaim(self.window[:limit], self.short)

    def claim_heads(self, conn: Any, tables: Any, *, keys: list[str], limit: int, **_: Any) -> list[ClaimedJob]:
        self.said.append(("lines", len(keys)))
        found = [key for key in keys if key in self.free][:limit]
        self.free.difference_update(found)
        return [job(key) for key in found]

    def find_free_lines(self, *_: Any, **__: Any) -> FreeLines:
        self.said.append(("walk", 0))
        return self.walked.pop(0) if self.walked else FreeLines([], None)

    def next_keyed(self, *_: Any, **__: Any) -> None:
        return None


def job(key: str) -> ClaimedJob:
    now = datetime.now(UTC)
    return ClaimedJob(f"of {key}", "n", 0, 5, 0, 3, [key], None, "t", now, 0.0, 0, now, "null")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rules(monkeypatch, keyed_module)


@pytest.fixture
def keyed(queue: Queue) -> KeyedClaims:
    database: Any = Nowhere()
    return KeyedClaims(database, queue, Claims(database, queue, worker_id="w", lease=60.0))


def claim(keyed: KeyedClaims, want: int, *, looking: bool) -> list[str]:
    return [job.id for job in keyed.claim(["n"], want, looking=looking, asleep=False).claimed]


def test_the_window_comes_first_and_then_the_lines(keyed: KeyedClaims, played: Played, clock: Clock) -> None:
    """The best priority may be of a key that nobody held; and what the window started holds its keys."""
    played.window = [job("a")]
    played.free = {"b", "c"}
    keyed.lines.add("abc")
    assert claim(keyed, 2, looking=True) == ["of a", "of b"]
    assert played.said == [("window", 2), ("walk", 0), ("lines", 2)]
    played.window, played.short = [job("d"), job("e")], []
    assert claim(keyed, 2, looking=True) == ["of d", "of e"]
    assert played.said[3:5] == [("window", 2)]


def test_more_and_more_lines_are_looked_at_beyond_those_needed(keyed: KeyedClaims, played: Played) -> None:
    """While none of them has somebody who can go on: 20 more at first, then four times as many, and 1,000 at most."""
    keyed.lines.add(f"k{n}" for n in range(5000))
    assert claim(keyed, 10, looking=False) == []
    assert played.said == [("lines", 10 + spare) for spare in (20, 80, 320, 1000, 1000, 1000, 1000)] + [("lines", 510)]


def test_what_was_claimed_before_an_outage_starts(
    keyed: KeyedClaims, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the database: left out, it would stall when its lease ends."""
    lost = OperationalError("", {}, ConnectionError("gone"), connection_invalidated=True)

    def fail(*_: Any, **__: Any) -> None:
        raise lost

    monkeypatch.setattr(store, "claim_heads", fail)
    played.window, played.short = [job("a")], ["n"]
    keyed.lines.add("bcd")
    assert keyed.claim(["n"], 3, looking=True, asleep=False) == KeyedLook(played.window, 0, True)
    played.window = []
    keyed.lines.add("bcd")
    with pytest.raises(OperationalError):
        keyed.claim(["n"], 3, looking=True, asleep=False)


def test_a_window_that_saw_everything_needs_no_lines(keyed: KeyedClaims, played: Played, clock: Clock) -> None:
    played.short = []
    keyed.lines.add("abc")
    assert claim(keyed, 5, looking=True) == []
    assert played.said == [("window", 5)]
    assert not keyed.lines


def test_a_walk_is_made_once_a_second_while_there_are_lines_enough(
    keyed: KeyedClaims, played: Played, clock: Clock
) -> None:
    def walks() -> int:
        """By a look, beside as many lines as are wanted."""
        before = played.said.count(("walk", 0))
        played.walked = [FreeLines(["x", "y", "z"], "z")]
        keyed.lines.add("abc")
        claim(keyed, 3, looking=True)
        return played.said.count(("walk", 0)) - before

    assert [walks(), walks()] == [1, 0]
    clock.now += 0.9
    assert walks() == 0
    clock.now += 0.2
    assert walks() == 1
    keyed.lines.clear()
    played.walked = [FreeLines(["x"], "x")]
    claim(keyed, 3, looking=True)
    assert not played.walked, "too few lines: it walks at once"


def test_a_walk_goes_once_around(keyed: KeyedClaims, played: Played, clock: Clock) -> None:
    """On from where the last one ended, and then from the start."""
    keyed.lines.after_key = "m"
    played.free = {"a"}
    played.walked = [FreeLines([], None), FreeLines(["a"], "a")]
    assert claim(keyed, 1, looking=True) == ["of a"]
    played.walked = [FreeLines([], None)] * 3
    clock.now += 2.0
    assert claim(keyed, 1, looking=True) == []
    assert len(played.walked) == 1
