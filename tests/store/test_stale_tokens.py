"""The fence: a worker that lost its lease changes nothing of the job, whatever it still writes."""

from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.steps import add, claim, end_lease, end_lingers, holds, rows, running
from tests.store.writes import WRITES, Write

FATES: dict[str, Write] = {
    "completed": lambda conn, queue, job: store.complete(conn, queue.tables, jobs=[job]),
    "failed": lambda conn, queue, job: store.fail(conn, queue.tables, job=job, error={}),
    "retried": lambda conn, queue, job: store.retry(conn, queue.tables, job=job),
    "released": lambda conn, queue, job: store.release(conn, queue.tables, job=job),
    "started again": lambda conn, queue, job: (
        store.retry(conn, queue.tables, job=job),
        claim(conn, queue, job.id, token="new"),
    ),
    "recovered": lambda conn, queue, job: (
        end_lease(conn, job.id),
        store.recover_stale(conn, queue.tables, id=job.id, lease=0, stall_delay=0),
    ),
    "recovered and started again": lambda conn, queue, job: (
        end_lease(conn, job.id),
        store.recover_stale(conn, queue.tables, id=job.id, lease=0, stall_delay=0),
        claim(conn, queue, job.id, token="new"),
    ),
}

EVERYTHING = (
    "SELECT j.* FROM sqlane_jobs AS j ORDER BY id",
    "SELECT id, CAST(payload AS text) FROM sqlane_payloads ORDER BY id",
    "SELECT w.* FROM sqlane_waits AS w ORDER BY w",
)


def everything(conn: sa.Connection) -> list[Any]:
    return [rows(conn, sql) for sql in EVERYTHING]


@pytest.mark.parametrize("fate", FATES)
def test_no_write_under_an_old_token_changes_anything(any_conn: sa.Connection, queue: Queue, fate: str) -> None:
    queue.define("n", failure_job="sorry", mutex_keys=["k", "l"])
    old = running(any_conn, queue, "n", "payload", token="old")
    add(any_conn, queue, "n")
    FATES[fate](any_conn, queue, old)
    end_lingers(any_conn)
    store.sweep_mutexes(any_conn, queue.tables, limit=9)
    before, held = everything(any_conn), holds(any_conn)
    assert set(held) == ({"k", "l"} if "started again" in fate else set())
    for name, write in WRITES.items():
        assert not write(any_conn, queue, old), name
        assert everything(any_conn) == before, name
        assert holds(any_conn) == held, name


@pytest.mark.parametrize("name", WRITES)
def test_the_same_token_of_another_job_is_no_key_to_this_one(any_conn: sa.Connection, queue: Queue, name: str) -> None:
    """A claim gives all its jobs one token: id and token belong together."""
    one, two = claim(any_conn, queue, *[add(any_conn, queue, mutex_keys=[key]) for key in "ab"])
    before = everything(any_conn)
    assert not WRITES[name](any_conn, queue, JobLock(one.id, "stale"))
    assert not WRITES[name](any_conn, queue, JobLock("unknown", one.lock_token))
    assert everything(any_conn) == before
    WRITES[name](any_conn, queue, one.lock)
    assert holds(any_conn)["b"] == (two.id, False)
    assert rows(any_conn, "SELECT status FROM sqlane_jobs WHERE id = :id", id=two.id) == ["running"]
