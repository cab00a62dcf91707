"""Two real connections, one of which waits for a lock of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from tests.support import wait_for_lock_wait


@contextmanager
def rival(engine: sa.Engine, work: Callable[[sa.Connection], Any], n: int = 1) -> Iterator[Future[Any]]:
    """Start `work(conn)` in a transaction of its own, wait until it waits for a lock, and run the block, which lets it
    go on. The result is there after the block, committed."""

    def run() -> Any:
        with engine.begin() as conn:
            conn.exec_driver_sql("SET LOCAL deadlock_timeout = '100ms'")
            return work(conn)

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(run)
        wait_for_lock_wait(engine, n)
        yield future


def committed(engine: sa.Engine, work: Callable[[sa.Connection], Any]) -> Any:
    with engine.begin() as conn:
        return work(conn)
