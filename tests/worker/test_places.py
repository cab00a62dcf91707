"""A worker that is held up between its look and its claim starts no job at a place where it is not any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqlane_sa import Job, JobContext, Queue, store
from sqlane_sa.worker import claims

Read = Callable[[str], Job]
Sql = Callable[..., list[Any]]

MOVE = """
WITH moved AS (
    UPDATE sqlane_jobs SET run_at = run_at + interval '30 s' WHERE id = :id RETURNING id, run_at)
UPDATE sqlane_waits AS w SET run_at = m.run_at FROM moved AS m WHERE w.job_id = m.id"""
BACK = "SET run_at = run_at - interval '60 s'"


def test_a_job_that_moved_behind_others_waits_for_them(
    queue: Queue, run: Any, enqueue: Any, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the first of its line; another worker ran it and tried it again later, as one that was paused finds.

    Around odd rows, where look and claim are two: for both in one statement see tests/store/test_claim_keyed_races.py.
    """
    order: list[str] = []

    @queue.job("keyed")
    def keyed(payload: Any, ctx: JobContext) -> None:
        order.append(ctx.id)

    first, second = enqueue("keyed", mutex_keys=["k"]), enqueue("keyed", mutex_keys=["k"])
    for table in ("jobs", "waits"):
        sql(f"UPDATE sqlane_{table} {BACK}")
    find = store.find_keyed_places
    moved: list[str] = []

    def find_and_be_held_up(*arguments: Any, **options: Any) -> dict[str, float]:
        places = find(*arguments, **options)
        if not moved and first in places:
            moved.append(first)
            sql(MOVE, id=first)
        return places

    monkeypatch.setattr(store, "find_keyed_places", find_and_be_held_up)
    monkeypatch.setattr(claims.Claims, "apart", property(lambda self: not moved or len(order) == 0))
    run()
    assert moved == [first]
    assert order == [second, first]
