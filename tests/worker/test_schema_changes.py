"""Tables that change under a running worker and a running producer."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.support import wait_until


@pytest.mark.parametrize("keys", [[], ["k"]], ids=["plain", "keyed"])
def test_a_column_is_added_while_statements_are_prepared(
    queue: Queue, work: Any, engine: sa.Engine, sql: Any, caplog: Any, keys: list[str]
) -> None:
    """B37: psycopg prepares what it has sent five times, and a prepared `*` fails once its columns change."""
    calls: list[int] = []

    @queue.job("twice", mutex_keys=keys, max_attempts=2, backoff=lambda attempt: 0, failure_job="reaction")
    def twice(payload: int) -> None:
        calls.append(payload)
        if payload % 2:
            raise ValueError

    queue.job("reaction")(lambda payload: None)

    def ended() -> int:
        return int(sql("SELECT count(*) FROM sqlane_jobs WHERE status IN ('completed', 'failed')")[0][0])

    worker = work()
    # One connection, so that it has prepared too.
    with engine.connect() as conn:

        def push(start: int) -> None:
            for n in range(start, start + 12):
                with conn.begin():
                    id_ = queue.enqueue(conn, "twice", n).id
                    assert queue.get(conn, id_) is not None
                    assert "twice" in queue.stats(conn)
            wait_until(lambda: ended() == (start + 12) * 3 // 2)

        push(0)
        prepared = conn.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%sqlane_%'"))
        conn.rollback()
        assert prepared, "nothing was prepared, and the test shows nothing"
        for table in ("jobs", "payloads", "mutexes", "waits", "sleepers"):
            sql(f"ALTER TABLE sqlane_{table} ADD COLUMN zz int DEFAULT 7")
        push(12)
    assert sorted(set(calls)) == list(range(24))
    assert worker.failure is None
    said = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR", "CRITICAL")]
    assert [message for message in said if "failed for good" not in message] == []
