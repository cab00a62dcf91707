"""Another session locks the jobs for longer than a lease."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.faults.conftest import LONG, StartLoad

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=LONG)])
def test_a_locked_table(load: StartLoad, database_url: str, seconds: float) -> None:
    """Nobody can renew, finish or claim meanwhile: what ran then is run again, and nothing else."""
    under = load(database_url, lease=1.0)
    with under.engine.connect().execution_options(isolation_level="READ COMMITTED") as rival:
        rival.execute(sa.text("LOCK TABLE sqlane_jobs IN ACCESS EXCLUSIVE MODE"))
        under.last(seconds)
        rival.rollback()
    under.fault_ended()
    counts = under.finish("jobs table locked", f"ACCESS EXCLUSIVE for {seconds:g} s, lease 1 s")
    assert counts.faults == {}
