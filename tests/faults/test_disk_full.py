"""The disk of the tables is full for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sqlane_sa.demo.server import Server
from tests.faults.conftest import StartLoad, migrated_database
from tests.faults.tmpfs import filled, small_disk
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
INDEXES = "SELECT indexname FROM pg_indexes WHERE schemaname = 'public'"


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(64) as disk:
        yield disk


@pytest.fixture
def url_on_disk(own_server: Server, disk: Path) -> Iterator[str]:
    """A database with its tables and indexes on the disk; both are dropped before the disk goes."""
    own_server.start()
    admin = sa.create_engine(own_server.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
    try:
        with migrated_database(own_server) as url:
            move(url)
            yield url
    finally:
        with admin.connect() as conn:
            conn.exec_driver_sql("DROP TABLESPACE small")


def move(url: str) -> None:
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as conn:
        for kind, names in (("TABLE", TABLES), ("INDEX", INDEXES)):
            for name in conn.scalars(sa.text(names)).all():
                conn.exec_driver_sql(f"ALTER {kind} {name} SET TABLESPACE small")


def test_a_full_disk(load: StartLoad, url_on_disk: str, disk: Path) -> None:
    """An enqueue is refused with the server's own words; workers wait for space, and go on without a restart."""
    under = load(url_on_disk)
    with filled(disk):
        refused = wait_until(
            lambda: under.check_alive() or [str(error.orig) for error in under.producer.errors],  # type: ignore[attr-defined]
            timeout=60,
            message="a refused enqueue",
        )
        under.last(3.0)
    under.fault_ended()
    shown = "1 enqueue" if len(refused) == 1 else f"{len(refused)} enqueues"
    counts = under.finish("disk full", f"tables on a disk with no byte free, {shown} refused")
    assert counts.faults == {}
    assert all("No space left on device" in error for error in refused), refused
