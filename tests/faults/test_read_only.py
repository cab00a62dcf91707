"""The database is read-only for a while, as one whose primary has moved elsewhere."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.faults.conftest import StartLoad
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""


def test_read_only_for_a_while(load: StartLoad, database_url: str) -> None:
    """B29: sessions from within that time stay read-only, and every one of them is replaced."""
    under = load(database_url)
    name = sa.make_url(database_url).database
    with under.engine.connect() as conn:
        # Of this session, which is to end it.
        conn.exec_driver_sql("SET default_transaction_read_only = off")
        conn.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        conn.exec_driver_sql(TERMINATE)
        for _ in range(3):
            errors = len(under.producer.errors)
            wait_until(lambda: under.check_alive() or len(under.producer.errors) > errors + 10)  # noqa: B023
        wait_until(lambda: all("loop: " in log for log in under.logs), message="an outage of each loop")
        conn.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    under.fault_ended()
    counts = under.finish("read-only database", "until the producer was refused 30 times")
    assert counts.faults == {}
    assert "25006" in {getattr(error.orig, "sqlstate", "") for error in under.producer.errors}  # type: ignore[attr-defined]
