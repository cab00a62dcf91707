"""`run_until_idle` returns only when nothing is left that can start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Job, JobContext, Queue, Worker
from tests.support import wait_until
from tests.worker.conftest import SHORT

Read = Callable[[str], Job]


@pytest.mark.parametrize("keys", [None, ["free"]], ids=["plain", "keyed"])
def test_a_job_enqueued_after_the_last_look_runs(
    queue: Queue, engine: sa.Engine, enqueue: Any, job: Read, sql: Any, keys: list[str] | None
) -> None:
    """The worker looked while the handler ran, found nothing that can start, and would look again in an hour."""
    added: list[str] = []

    @queue.job("first")
    def first(payload: Any, ctx: JobContext) -> None:
        wait_until(lambda: worker._parts is not None and worker._parts.jobs.waiting)
        added.append(ctx.enqueue("second", mutex_keys=keys).id)

    queue.job("second")(lambda payload: None)
    sql(
        "INSERT INTO sqlane_mutexes (mutex_key, job_id, lock_token, held_until)"
        " VALUES ('held', 'x', 'x', statement_timestamp() + interval '1 hour')"
    )
    blocked = enqueue("second", mutex_keys=["held"])
    enqueue("first")
    worker = Worker(engine, queue, **(SHORT | {"poll_interval": 3600, "wakeups": False}))
    worker.run_until_idle()
    assert [job(id_).status for id_ in added] == ["completed"]
    assert job(blocked).status == "pending"
