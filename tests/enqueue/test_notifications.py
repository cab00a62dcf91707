"""What an enqueue tells a waiting worker: nothing but that there is something."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.values.text import KEY_CHARS, NAME_CHARS
from tests.enqueue.business import seen
from tests.wakeups import listening_url

LONGEST_NAME = "\U0001f600" * NAME_CHARS
LONGEST_KEY = "\U0001f600" * KEY_CHARS


@pytest.mark.usefixtures("asleep")
@pytest.mark.parametrize("case", ["payload", "name", "key", "many"])
def test_a_notification_is_never_too_long(database_url: str, engine: sa.Engine, queue: Queue, case: str) -> None:
    """C41: PostgreSQL refuses one of 8,000 bytes, and with it the commit."""
    queue.define("n")
    queue.define(LONGEST_NAME)
    new = {
        "payload": [queue.new("n", "x" * 1_000_000)],
        "name": [queue.new(LONGEST_NAME)],
        "key": [queue.new("n", mutex_keys=[LONGEST_KEY[:-3] + f"{i:03}" for i in range(100)])],
        "many": [queue.new(LONGEST_NAME, n, mutex_keys=[LONGEST_KEY]) for n in range(2000)],
    }[case]
    with psycopg.connect(listening_url(database_url), autocommit=True) as listener:
        listener.execute(f"LISTEN {queue.tables.channel}")
        with engine.begin() as conn:
            queue.enqueue_many(conn, new)
        notices = list(listener.notifies(timeout=60, stop_after=1))
        notices += listener.notifies(timeout=0)
    assert [notice.payload for notice in notices] == [""]
    assert seen(engine)[:3] == (0, len(new), len(new))
