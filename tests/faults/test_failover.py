"""A standby takes the primary's place under load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from sqlane_sa import Queue
from sqlane_sa.demo.server import Server
from sqlane_sa.migrations import apply
from sqlane_sa.values.ids import new_id
from tests.conftest import SETTINGS, memory_folder
from tests.faults.conftest import StartLoad
from tests.faults.standby import Standby, catch_up, either, execute, follow
from tests.support import wait_until

# Many seconds of a quiet machine, and minutes of a busy one.
pytestmark = pytest.mark.timeout(300)

OPTIONS: dict[str, Any] = {"fsync": False, "settings": SETTINGS, "parent": memory_folder()}


class Pair(NamedTuple):
    """`url` leads to a migrated database on whichever of the two takes writes."""

    primary: Server
    standby: Standby
    url: str


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Server(tcp=True, **OPTIONS) as primary:
        execute(primary, "CREATE DATABASE app")
        apply(sa.create_engine(primary.url("app"), poolclass=sa.NullPool), Queue())
        with Standby(primary, **OPTIONS) as standby:
            yield Pair(primary, standby, either(primary, standby, "app"))


def test_a_synchronous_standby_is_promoted(load: StartLoad, pair: Pair) -> None:
    """What was acknowledged is there, and goes on: none is lost."""
    follow(pair.primary)
    under = load(pair.url)
    pair.primary.stop("immediate")
    pair.standby.promote()
    under.fault_ended()
    counts = under.finish("failover", "primary stopped, immediate; its synchronous standby promoted")
    assert counts.faults == {}
    assert under.producer.errors, "the producer saw the failover"
    assert under.scalar("SHOW port") == str(pair.standby.port)


def test_a_standby_that_lags_is_promoted(load: StartLoad, pair: Pair) -> None:
    """The negative control: where COMMIT does not wait for the standby, jobs are lost, and the count says so."""
    follow(pair.primary, names="")
    under = load(pair.url)
    pair.standby.stop()
    before = set(under.producer.acknowledged)
    wait_until(lambda: under.check_alive() or len(under.producer.acknowledged) > len(before) + 20, 60)
    pair.primary.stop("immediate")
    away = under.producer.acknowledged - before
    pair.standby.start()
    pair.standby.promote()
    under.fault_ended()
    counts = under.finish("failover, asynchronous", f"standby away for {len(away)} jobs, then promoted")
    assert counts.lost >= len(away) > 20
    assert counts.faults.keys() == {"lost"}


def test_commits_that_wait_for_nobody(load: StartLoad, pair: Pair) -> None:
    """The negative control with a standby that is synchronous, and sessions that do without it: exactly what was
    acknowledged since it stopped is lost, and the count says so."""
    execute(pair.primary, "ALTER DATABASE app SET synchronous_commit = off")
    follow(pair.primary)
    under = load(pair.url)
    ids = [new_id() for _ in range(20)]
    with under.producer.paused():
        catch_up(pair.primary)
        pair.standby.stop()
        for id_ in ids:
            under.producer.enqueue_one(id_)
        pair.primary.stop("immediate")
    pair.standby.start()
    pair.standby.promote()
    under.fault_ended()
    counts = under.finish("failover, synchronous_commit=off", f"standby away for {len(ids)} jobs, then promoted")
    assert counts.faults == {"lost": len(ids)}
    assert under.scalar("SELECT count(*) FROM sqlane_jobs WHERE id = ANY(:ids)", ids=ids) == 0


def test_a_synchronous_standby_is_gone(load: StartLoad, pair: Pair) -> None:
    """Every COMMIT waits for it, for ever; a worker does not: its calls end by their deadline, and go on afterwards."""
    follow(pair.primary)
    under = load(pair.url)
    pair.standby.stop()
    wait_until(
        lambda: under.check_alive() or all("loop: OperationalError" in log for log in under.logs),
        60,
        "the end of a call of each loop",
    )
    pair.standby.start()
    under.fault_ended()
    counts = under.finish("synchronous standby gone", "until each worker's loop had given up a COMMIT")
    assert counts.faults == {}
