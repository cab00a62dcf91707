"""docs/poolers.md: a transactional handler holds a session of a pooler from its first statement on, and not before."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, Worker
from tests.support import wait_until

IN_TRANSACTION = sa.text(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
)


def test_a_handler_that_computes_first_is_in_no_transaction_yet(engine: sa.Engine, queue: Queue) -> None:
    looking = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    held: list[object] = []

    def open_ones() -> int:
        return int(looking.scalar(IN_TRANSACTION) or 0)

    @queue.job("n", transactional=True)
    def handler(payload: Any, ctx: Any) -> None:
        # The worker's own transactions are short: what stays is the handler's.
        wait_until(lambda: open_ones() == 0)
        ctx.enqueue("other")
        held.append(open_ones())
        assert ctx.session.scalar(sa.text("SELECT 1")) == 1
        held.append(open_ones())

    queue.job("other")(lambda payload: None)
    with engine.begin() as conn:
        queue.enqueue(conn, "n", max_attempts=1)
    with looking:
        Worker(engine, queue).run_until_idle()
    assert len(held) == 2
    assert all(held)
