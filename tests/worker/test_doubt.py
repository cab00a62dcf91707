"""Claims whose commit got no answer: what they started is ours, and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue, store
from sqlane_sa.values.job import ClaimedJob
from tests.support import wait_until

Read = Callable[[str], Job]


@contextmanager
def lost_answers(engine: sa.Engine, to: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The first COMMIT after a statement that holds `to` takes place, and its answer never arrives."""
    lost: list[Any] = []
    marked: set[Any] = set()
    commit = engine.dialect.do_commit

    def mark(conn: Any, cursor: Any, sql: str, *_: Any) -> None:
        if to in sql:
            marked.add(cursor.connection)

    def commit_and_lose(connection: Any) -> None:
        commit(connection)
        if not lost and connection.driver_connection in marked:
            lost.append(connection)
            connection.driver_connection.close()
            raise psycopg.OperationalError("the connection is lost")

    sa.event.listen(sa.Engine, "after_cursor_execute", mark)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(engine.dialect, "do_commit", commit_and_lose)
            yield lost
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", mark)


@pytest.mark.parametrize("keys", [None, ["k"]])
def test_jobs_of_a_claim_whose_commit_got_no_answer_run_at_once(
    queue: Queue,
    engine: sa.Engine,
    run: Any,
    enqueue: Any,
    job: Read,
    monkeypatch: pytest.MonkeyPatch,
    keys: list[str] | None,
) -> None:
    """And not after their leases, as stalls."""
    runs: list[str] = []

    @queue.job("quick")
    def quick(payload: Any, ctx: JobContext) -> None:
        runs.append(ctx.id)

    ids = [enqueue("quick", mutex_keys=keys) for _ in range(5)]
    recalls: list[list[str]] = []
    recall = store.recall

    def noted(*arguments: Any, **options: Any) -> list[ClaimedJob]:
        recalls.append(list(options["lock_tokens"]))
        return recall(*arguments, **options)

    monkeypatch.setattr(store, "recall", noted)
    with lost_answers(engine, "SET status = 'running'", monkeypatch) as lost:
        run(lease=3600)
    assert lost
    assert len(recalls) == 1, "a doubt is settled once"
    assert sorted(runs) == sorted(ids)
    assert {(job(id_).status, job(id_).stalls, job(id_).attempts) for id_ in ids} == {("completed", 0, 1)}


def test_at_the_end_of_a_worker_they_are_handed_back(
    queue: Queue, engine: sa.Engine, work: Any, enqueue: Any, job: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes before the answer would have."""
    queue.job("quick")(lambda payload: None)
    with lost_answers(engine, "SET status = 'running'", monkeypatch) as lost:
        worker = work(lease=3600)
        loop = worker._parts.loop
        recall = loop._recall

        def stopped_first() -> None:
            if loop._claims.in_doubt:
                loop.claiming = False
            recall()

        loop._recall = stopped_first
        id_ = enqueue("quick")
        wait_until(lambda: lost)
        wait_until(lambda: not loop.claiming)
        worker.stop()
    assert (job(id_).status, job(id_).attempts, job(id_).stalls) == ("pending", 0, 0)
