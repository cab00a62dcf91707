"""Freed keys: the next job of a line starts without a look at everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, Queue, store
from sqlane_sa.worker import lines, looks
from sqlane_sa.worker.lines import Lines
from tests.support import wait_until

Read = Callable[[str], Job]
HOURS = 3600.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the workers called these; and a look at everything that found too little is the last for hours."""
    counts: dict[str, int] = {}

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(store, name)

        def count(*arguments: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return call(*arguments, **options)

        return count

    for name in ("claim_keyed", "claim_heads", "find_free_lines"):
        monkeypatch.setattr(store, name, counted(name))
    monkeypatch.setattr(looks, "KEYED_PAUSE", HOURS)
    return counts


@pytest.mark.parametrize("transactional", [False, True])
def test_one_line_is_followed_from_job_to_job(
    queue: Queue, work: Any, engine: sa.Engine, calls: dict[str, int], transactional: bool
) -> None:
    order: list[int] = []
    queue.job("keyed", mutex_keys=["k"], transactional=transactional)(lambda payload, ctx: order.append(payload))
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("keyed", n) for n in range(30)])
    work(concurrency=2, poll_interval=HOURS, wakeups=False, lease=60)
    wait_until(lambda: len(order) == 30)
    assert order == list(range(30))
    assert calls["claim_keyed"] == 1
    assert calls["claim_heads"] >= 29


def test_lines_past_a_full_window_are_walked_to_once_and_then_followed(
    queue: Queue, work: Any, engine: sa.Engine, calls: dict[str, int]
) -> None:
    """1,200 jobs behind a key that is held elsewhere; and 100 over ten keys past them."""
    done: list[int] = []
    seen: list[dict[str, int]] = []

    @queue.job("keyed")
    def note(payload: int) -> None:
        done.append(payload)
        if len(done) == 100:
            seen.append(dict(calls))  # a worker that has run dry looks at everything once more

    queue.define("elsewhere", mutex_keys=["held"])
    with engine.begin() as conn:
        holder = queue.enqueue(conn, "elsewhere").id
        by: Any = {"lock_token": "token", "locked_by": "another", "lease": HOURS}
        store.claim(conn, queue.tables, candidate_ids=[holder], **by)
        queue.enqueue_many(conn, [queue.new("keyed", -1, mutex_keys=["held"])] * 1200)
        queue.enqueue_many(conn, [queue.new("keyed", n, mutex_keys=[f"k{n % 10}"]) for n in range(100)])
    work(concurrency=20, poll_interval=HOURS, wakeups=False, lease=60)
    wait_until(lambda: seen)
    assert sorted(done) == list(range(100))
    assert [[n for n in done if n % 10 == key] for key in range(10)] == [list(range(key, 100, 10)) for key in range(10)]
    assert seen[0]["claim_keyed"] == 1
    assert seen[0]["find_free_lines"] == 1


def test_lines_are_taken_in_turn_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_KEYS", 3)
    some = Lines()
    some.add("abcab")
    assert len(some) == 3
    some.add("d")
    assert some.take(2) == ["b", "c"]
    some.drop("x")
    assert some.take(9) == ["d"]
    assert not some
    some.add("e")
    some.clear()
    assert some.take(1) == []


def test_a_claim_that_failed_as_a_whole_is_made_anew_one_step_after_the_other(
    queue: Queue, run: Any, engine: sa.Engine, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it does fail: tests/store/test_claim_keyed_races.py."""
    steps: list[str] = []
    claim, claim_keyed = store.claim, store.claim_keyed

    def general(*arguments: Any, **options: Any) -> Any:
        steps.append("general")
        return claim(*arguments, **options)

    def fails_at_first(conn: sa.Connection, *arguments: Any, **options: Any) -> Any:
        assert options["whole"]
        if not steps:
            steps.append("failed")
            conn.exec_driver_sql("SELECT CAST('job' AS integer)")
        return claim_keyed(conn, *arguments, **options)

    monkeypatch.setattr(store, "claim", general)
    monkeypatch.setattr(store, "claim_keyed", fails_at_first)
    order: list[int] = []
    queue.job("keyed")(order.append)
    with engine.begin() as conn:
        queue.enqueue_many(conn, [queue.new("keyed", n, mutex_keys=["a", "k"]) for n in range(2)])
    run(lease=60)
    assert order == [0, 1]
    assert steps[:2] == ["failed", "general"]
    assert sql("SELECT FROM sqlane_mutexes") == []
