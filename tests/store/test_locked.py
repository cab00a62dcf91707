"""Which running jobs another transaction has locked: found out without a wait."""

from __future__ import annotations

import sqlalchemy as sa

from sqlane_sa import Queue, store
from sqlane_sa.values.job import JobLock
from tests.store.races import committed
from tests.store.steps import add, claim, run


def test_rows_and_keys_that_are_locked(engine: sa.Engine, queue: Queue) -> None:
    def start(conn: sa.Connection) -> list[str]:
        ids = [add(conn, queue, mutex_keys=keys) for keys in (None, None, ["a", "b"], ["c"], None)]
        claim(conn, queue, *ids)
        return ids

    row, free, key, free_key, other = committed(engine, start)
    locks = [lock(id_) for id_ in (row, free, key, free_key)] + [lock(other, "another token")]
    with engine.connect() as rival, engine.connect() as conn:
        rival.begin()
        run(rival, "SELECT FROM sqlane_jobs WHERE id = ANY(:ids) FOR UPDATE", ids=[row, other])
        run(rival, "SELECT FROM sqlane_mutexes WHERE mutex_key = 'b' FOR UPDATE")
        store.wait_briefly(conn)
        assert store.find_locked(conn, queue.tables, jobs=locks) == {(row, "token-1"), (key, "token-1")}
        rival.rollback()
        assert store.find_locked(conn, queue.tables, jobs=locks) == set()


def lock(id: str, token: str = "token-1") -> JobLock:
    return JobLock(id, token)
