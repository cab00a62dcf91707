"""The server stops under load, and comes back."""

from __future__ import annotations

from typing import Literal

import pytest

from sqlane_sa.demo.server import Server
from tests.faults.conftest import LONG, StartLoad

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("mode", "outage"),
    [("immediate", 0.0), ("fast", 0.0), ("immediate", 10.0), pytest.param("immediate", 120.0, marks=LONG)],
)
def test_a_restart(
    load: StartLoad, own_server: Server, own_url: str, mode: Literal["immediate", "fast"], outage: float
) -> None:
    """B26: nothing is lost, no worker needs a restart, and each of its parts says once that the server is gone."""
    under = load(own_url)
    own_server.stop(mode)
    under.last(outage)
    own_server.start()
    under.fault_ended()
    counts = under.finish(f"server stopped, {mode}", f"started again after {outage:g} s")
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the outage"
    for log in under.logs:
        assert "loop: works again" in log
        assert log.count("; trying again until it works") <= 4, log
