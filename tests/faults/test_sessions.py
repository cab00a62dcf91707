"""What the sessions of a worker look like from the server, and what a role's time limits do to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.faults.conftest import StartLoad
from tests.faults.roles import new_role, url_of
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

LIMITS = {"idle_in_transaction_session_timeout": "1s", "statement_timeout": "5s", "lock_timeout": "1s"}
SAMPLE = """
SELECT pid, query, state, xact_start,
       state = 'idle in transaction' AND clock_timestamp() - state_change > interval '1 s' AS idles,
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pg_locks.pid = pg_stat_activity.pid) AS advisory
FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'worker-%'"""


@pytest.fixture
def limited_url(admin: sa.Engine, database_url: str) -> Iterator[str]:
    """As a role whose sessions have `LIMITS`."""
    with new_role(admin, database_url) as role:
        with admin.connect() as conn:
            for name, value in LIMITS.items():
                conn.exec_driver_sql(f"ALTER ROLE {role} SET {name} = '{value}'")
        yield url_of(role, database_url)


def test_limits_of_a_role(load: StartLoad, database_url: str, limited_url: str) -> None:
    """B40, C46: under load no session idles in a transaction, the listeners have none, nobody takes advisory locks; and
    the limits of the role disturb nobody."""
    under = load(limited_url, watch_url=database_url, ledger=False)
    under.producer.enqueue_one("long", seconds=4)
    with under.engine.connect() as conn:
        listeners = wait_until(lambda: {one.pid for one in sessions(conn) if listens(one)})
        wait_until(lambda: check(sessions(conn), listeners) and ended(conn, "long"), timeout=60)
    under.fault_ended()
    counts = under.finish("short time limits", ", ".join(f"{name} {value}" for name, value in LIMITS.items()))
    assert counts.faults == {}
    assert under.producer.errors == []
    for log in under.logs:
        assert "trying again until it works" not in log
    wait_until(lambda: under.scalar("SELECT pg_notification_queue_usage()") == 0)


def sessions(conn: sa.Connection) -> list[Any]:
    return list(conn.execute(sa.text(SAMPLE)))


def listens(session: Any) -> bool:
    """Its last statement was its LISTEN, or a ping to itself; what others notify is followed by their COMMIT."""
    return session.state == "idle" and ("LISTEN" in session.query or "pg_notify" in session.query)


def check(sampled: list[Any], listeners: set[int]) -> bool:
    for session in sampled:
        assert not session.idles, session
        assert session.advisory == 0, session
        # A ping is a statement of its own.
        assert session.pid not in listeners or session.xact_start is None or session.state == "active", session
    return True


def ended(conn: sa.Connection, id_: str) -> bool:
    return bool(conn.scalar(sa.text("SELECT finished_at IS NOT NULL FROM sqlane_jobs WHERE id = :id"), {"id": id_}))
