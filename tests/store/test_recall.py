"""Recall: what became of a claim whose commit got no answer."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.store.steps import TOKEN, add, claim, end_lease, holds, ids_of, job_row, running

RECALLED = {"lock_tokens": [TOKEN], "lease": 90.0}


def test_the_jobs_of_the_token_come_back_as_the_claim_gave_them(any_conn: sa.Connection, queue: Queue) -> None:
    ids = [add(any_conn, queue, payload={"n": n}, mutex_keys=[f"k{n}", "x"][: n + 1]) for n in range(2)]
    claimed = claim(any_conn, queue, *ids)
    running(any_conn, queue, token="another")
    recalled = store.recall(any_conn, queue.tables, **RECALLED)
    assert [job._replace(payload_text=None, waited_ms=0.0) for job in recalled] == [
        job._replace(waited_ms=0.0) for job in claimed
    ]
    assert [job.payload_text for job in recalled] == ['{"n":0}', '{"n":1}']
    assert holds(any_conn) == {"k0": (ids[0], False), "k1": (ids[1], False), "x": (ids[1], False)}


def test_they_get_a_new_lease_and_may_be_recalled_again(conn: sa.Connection, queue: Queue) -> None:
    one = running(conn, queue)
    for _ in range(2):
        assert ids_of(store.recall(conn, queue.tables, **RECALLED)) == [one.id]
        assert 80 < job_row(conn, one.id)["locked_until"] <= 90
    assert store.complete(conn, queue.tables, jobs=[one.lock]) == [one.id]


def test_nothing_comes_back_of_a_claim_that_did_not_take_place_or_is_over(conn: sa.Connection, queue: Queue) -> None:
    add(conn, queue)
    done = running(conn, queue)
    store.complete(conn, queue.tables, jobs=[done.lock])
    stalled = running(conn, queue)
    end_lease(conn, stalled.id)
    build: Any = None
    store.recover_stale(conn, queue.tables, id=stalled.id, lease=1, stall_delay=0, build_failure_job=build)
    assert store.recall(conn, queue.tables, **RECALLED) == []
    claim(conn, queue, stalled.id, token="newer")
    assert store.recall(conn, queue.tables, **RECALLED) == []
    assert store.recall(conn, queue.tables, lock_tokens=[], lease=1) == []
