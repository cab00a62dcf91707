"""PgBouncer in transaction mode between the load and its server, with four connections for all of it."""

from __future__ import annotations

import pytest

from tests.faults.conftest import StartLoad
from tests.pgbouncer.pooler import PgBouncer, program

pytestmark = [
    pytest.mark.skipif(program() is None, reason="pgbouncer is missing; apt-get install pgbouncer"),
    # Many seconds of a quiet machine, and minutes of a busy one.
    pytest.mark.timeout(300),
]


def test_four_connections_for_all(load: StartLoad, database_url: str) -> None:
    """B30: two workers, their handlers and the producer share them; each worker says once that LISTEN hears nothing.

    One handler at a time in each: a transactional one has one of the four and wants another for its notes, and four of
    them would wait for each other and keep the workers from renewing.
    """
    with PgBouncer(database_url, pool_size=4) as pooler:
        unprepared = {"prepare_threshold": None}
        under = load(pooler.url(database_url), watch_url=database_url, connect_args=unprepared, concurrency=1)
        under.wait_for_progress(200)
        under.fault_ended()
        done = "transaction mode, 4 connections for producer and 2 workers with a handler each"
        counts = under.finish("PgBouncer", done)
        assert counts.faults == {}
        for log in under.logs:
            assert sum("WARNING" in line and "LISTEN" in line for line in log.splitlines()) == 1, log
