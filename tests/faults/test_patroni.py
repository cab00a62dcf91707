"""Patroni gives the leader's place to its synchronous standby under load."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.migrations import apply
from tests.faults.conftest import StartLoad
from tests.faults.load import Load
from tests.faults.patroni import Cluster, missing
from tests.faults.patroni_nodes import PATIENCE, Node
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
    leader, _ = cluster.wait_until_whole()
    name = request.node.name
    execute(leader, f"CREATE DATABASE {name}")
    apply(sa.create_engine(leader.url(name), poolclass=sa.NullPool), Queue())
    return either(*cluster.nodes, name)


def test_the_leader_is_killed(load: StartLoad, cluster: Cluster, url: str) -> None:
    """Patroni and its server at once; the standby takes over by itself when the leader's lock has run out."""
    under = load(url)
    leader, other = cluster.wait_until_whole()
    began = time.monotonic()
    leader.kill()
    wait_for_leader(other, under)
    led = time.monotonic() - began
    # No COMMIT returns while the new leader has no standby.
    leader.start()
    cluster.wait_until_whole()
    away = time.monotonic() - began
    under.fault_ended()
    done = f"leader killed; its synchronous standby led after {led:.0f} s, and had a standby after {away:.0f} s"
    counts = under.finish("failover by Patroni", done)
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the failover"
    assert under.scalar("SHOW port") == str(other.port)


def test_the_leader_hands_over(load: StartLoad, cluster: Cluster, url: str) -> None:
    """The leader is stopped in order, its standby is promoted, and it follows that one from then on."""
    under = load(url)
    leader, other = cluster.wait_until_whole()
    began = time.monotonic()
    leader.hand_over(to=other)
    wait_for_leader(other, under)
    cluster.wait_until_whole()
    away = time.monotonic() - began
    under.fault_ended()
    done = f"patronictl switchover; the new leader had a standby after {away:.0f} s"
    counts = under.finish("switchover by Patroni", done)
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the switchover"
    assert under.scalar("SHOW port") == str(other.port)


def wait_for_leader(node: Node, under: Load) -> None:
    def leads() -> bool:
        under.check_alive()
        return node.leads()

    wait_until(leads, PATIENCE, f"{node.name} as the leader")
