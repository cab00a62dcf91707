"""A key that is freed while another job of it is on its way."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.support import wait_until

POLL = 0.5
RELEASES = int(os.environ.get("SQLANE_TEST_KEY_RELEASES", "150"))
"""500 of them and more by SQLANE_TEST_KEY_RELEASES=500 pytest tests/worker/test_key_release.py"""


@pytest.mark.parametrize("wakeups", [True, False], ids=["wake-ups", "polling"])
def test_a_job_that_commits_while_its_key_is_freed_starts(
    queue: Queue, work: Any, enqueue: Any, engine: sa.Engine, wakeups: bool
) -> None:
    """A11: enqueued while the key is held and committed around its release, by workers of their own, over and over."""
    entered, go = threading.Event(), threading.Event()
    left, followed = threading.Event(), threading.Event()

    @queue.job("holder", mutex_keys=["k"], completed_retention=0)
    def holder(payload: Any) -> None:
        entered.set()
        assert go.wait(60)
        left.set()

    queue.job("follower", mutex_keys=["k"], completed_retention=0)(lambda payload: followed.set())
    chance = random.Random(11)
    for name in ("holder", "follower"):
        work(names=[name], lease=60, poll_interval=POLL if wakeups else 0.01, wakeups=wakeups)
    for _ in range(RELEASES if wakeups else RELEASES // 3):
        for event in (entered, go, left, followed):
            event.clear()
        enqueue("holder")
        assert entered.wait(60)
        with engine.connect() as conn:
            conn.begin()
            queue.enqueue(conn, "follower")
            go.set()
            if chance.random() < 0.6:
                assert left.wait(60)
            if chance.random() < 0.3:
                wait_until(lambda: not keys_held(engine))
            conn.commit()
        assert followed.wait(POLL + 5), "a job whose key is free did not start within a poll interval"


def keys_held(engine: sa.Engine) -> int:
    with engine.connect() as conn:
        return int(conn.scalar(sa.text("SELECT count(*) FROM sqlane_mutexes")) or 0)
