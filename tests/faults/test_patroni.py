"""Patroni gives the leader's place to its synchronous standby under load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.migrations import apply
from tests.faults.conftest import StartLoad
from tests.faults.patroni import Cluster, missing
from tests.faults.patroni_nodes import PATIENCE
from tests.faults.standby import either, execute
from tests.support import wait_until

pytestmark = [
    # .ci/run does not install them: no "apt-get install" here, which would make it a failure there.
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())} (packages of Debian)"),
    pytest.mark.slow,
    # The parts wait for each other's timeouts, and for a busy machine.
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """Whole, whatever the test before did."""
    started.start()
    return started


@pytest.fixture
def url(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A migrated database of the test's own, on whichever node takes writes."""
    leader, _ = cluster.pair()
    name = request.node.name
    execute(leader, f"CREATE DATABASE {name}")
    apply(sa.create_engine(leader.url(name), poolclass=sa.NullPool), Queue())
    return either(*cluster.nodes, name)


def test_the_leader_is_killed(load: StartLoad, cluster: Cluster, url: str) -> None:
    """Patroni and its server at once; the standby takes over by itself when the leader's lock has run out."""
    under = load(url)
    leader, other = cluster.pair()
    leader.kill()
    wait_until(lambda: under.check_alive() or other.leads(), PATIENCE, f"{other.name} in the place of {leader.name}")
    # No COMMIT returns while the new leader has no standby.
    leader.start()
    cluster.wait_until_whole()
    under.fault_ended()
    counts = under.finish("failover by Patroni", "leader killed; its synchronous standby took over, then it came back")
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the failover"
    assert under.scalar("SHOW port") == str(other.port)


def test_the_leader_hands_over(load: StartLoad, cluster: Cluster, url: str) -> None:
    """The leader is stopped in order, the standby promoted, and each follows the other from then on."""
    under = load(url)
    leader, other = cluster.pair()
    leader.hand_over(to=other)
    wait_until(lambda: under.check_alive() or other.leads(), PATIENCE, f"{other.name} in the place of {leader.name}")
    cluster.wait_until_whole()
    under.fault_ended()
    counts = under.finish("switchover by Patroni", "the leader stopped, its synchronous standby promoted")
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the switchover"
    assert under.scalar("SHOW port") == str(other.port)
