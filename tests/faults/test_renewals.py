"""A row whose lease cannot be renewed costs no other job its lease."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import JobContext, Queue, Worker
from tests.support import wait_until

REFUSE = """
CREATE SEQUENCE tries;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id = 'the-one' AND NEW.status = 'running' AND OLD.status = 'running' AND nextval('tries') > 0 THEN
        RAISE EXCEPTION 'injected' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON sqlane_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"""


@pytest.mark.parametrize(("code", "place"), [("40001", 0), ("57014", 3), ("P0001", 7)])
def test_a_row_that_cannot_be_renewed(queue: Queue, engine: sa.Engine, code: str, place: int) -> None:
    """Wherever it is among them, and whatever it fails with: the leases of the others go on."""
    go = threading.Event()
    cancelled: list[str] = []

    @queue.job("wait")
    def wait(payload: Any, ctx: JobContext) -> None:
        go.wait(60)
        if ctx.cancelled.is_set():
            cancelled.append(ctx.id)

    ids = [f"other-{n}" for n in range(8)]
    ids[place] = "the-one"
    with engine.begin() as conn:
        conn.exec_driver_sql(REFUSE.format(code=code))
        queue.enqueue_many(conn, [queue.new("wait", id=id_) for id_ in ids])
    looks = engine.execution_options(isolation_level="AUTOCOMMIT")

    def leases() -> list[Any]:
        with looks.connect() as conn:
            sql = "SELECT locked_until - started_at FROM sqlane_jobs WHERE status = 'running' AND id <> 'the-one'"
            return list(conn.scalars(sa.text(sql)))

    with Worker(engine, queue, lease=6.0, poll_interval=0.1, sweep_interval=60.0):
        wait_until(lambda: len(leases()) == 7)
        # Twice: what has found its way once is to find it again.
        wait_until(lambda: len(found := leases()) == 7 and min(found).total_seconds() > 9, timeout=60)
        with looks.connect() as conn:
            assert conn.scalar(sa.text("SELECT last_value FROM tries")) > 2
        go.set()
        wait_until(lambda: leases() == [])
    assert set(cancelled) <= {"the-one"}
