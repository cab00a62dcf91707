"""There are no connections left for a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.faults.conftest import StartLoad
from tests.faults.roles import new_role, url_of
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"


@pytest.fixture
def role(admin: sa.Engine, database_url: str) -> Iterator[str]:
    with new_role(admin, database_url) as role:
        yield role


@pytest.mark.parametrize("limit", [0, 2])
def test_too_few_connections(load: StartLoad, admin: sa.Engine, database_url: str, role: str, limit: int) -> None:
    """Workers and producer lose theirs and get no others, or not as many as they have parts; a worker that
    is started then waits. And all go on when there are enough."""
    under = load(url_of(role, database_url), watch_url=database_url, ledger=False)
    with admin.connect() as conn:
        conn.exec_driver_sql(f"ALTER ROLE {role} CONNECTION LIMIT {limit}")
        conn.exec_driver_sql(TERMINATE.format(role=role))
        under.add_worker()
        under.last(3.0)
        wait_until(lambda: under.check_alive() or any(map(is_refused, under.producer.errors)))
        conn.exec_driver_sql(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    under.fault_ended()
    counts = under.finish("connection limit", f"{limit} connections for all, for 3 s")
    assert counts.faults == {}


def is_refused(error: Exception) -> bool:
    return "too many connections for role" in str(error)
