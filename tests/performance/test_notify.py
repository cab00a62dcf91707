"""C44: what a wake-up costs many clients. NOTIFY takes a lock of the whole database at the commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from tests.wakeups import *  # noqa: F403
from tests.wakeups import Heard

CLIENTS = 32
TRANSACTIONS = 20
JOBS_EACH = 3

# Asked all the while: a heavyweight lock on the database as an object, which only commits with a NOTIFY take.
LOCK = "SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND objid = 0"


def write(engine: sa.Engine, queue: Queue) -> None:
    """All clients at once, each transaction with a few jobs."""
    gate = threading.Barrier(CLIENTS)

    def client(number: int) -> None:
        with engine.connect() as conn:
            gate.wait(60)
            for _ in range(TRANSACTIONS):
                with conn.begin():
                    for _ in range(JOBS_EACH):
                        queue.enqueue(conn, "n")

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(client, range(CLIENTS)))


@contextmanager
def watched(engine: sa.Engine) -> Iterator[list[int]]:
    """How many sessions had or awaited the lock, at each of many looks."""
    seen: list[int] = []
    stop = threading.Event()

    def look() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            while not stop.wait(0.001):
                seen.append(conn.exec_driver_sql(LOCK).scalar_one())

    watcher = threading.Thread(target=look)
    watcher.start()
    yield seen
    stop.set()
    watcher.join()


@pytest.fixture
def crowd(database_url: str, queue: Queue) -> Iterator[sa.Engine]:
    queue.define("n")
    engine = sa.create_engine(database_url, pool_size=CLIENTS + 1)
    yield engine
    engine.dispose()


def test_nobody_asleep_costs_nothing(crowd: sa.Engine, queue: Queue, heard: Heard) -> None:
    with watched(crowd) as seen:
        write(crowd, queue)
    assert heard() == 0
    assert sum(seen) == 0 < len(seen)


def test_a_sleeper_is_told_once_in_each_transaction(crowd: sa.Engine, queue: Queue, heard: Heard, asleep: None) -> None:
    with watched(crowd) as seen:
        write(crowd, queue)
    assert heard() == CLIENTS * TRANSACTIONS
    assert sum(seen) > 0, "the lock is looked for in the wrong place"
