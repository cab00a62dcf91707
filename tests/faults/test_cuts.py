"""Every cut: each operation of the store, and enqueue, cut at each of its messages in both directions.

`SQLANE_EVERY_CUT=1` half-opens and cuts before and after at each message; by default what differs only in the moment of
the same cut is left out. With `-s` the counts are printed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby

import pytest
import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.worker.database import Connector
from tests.conftest import new_database
from tests.faults.cutting import LATE, TRIES, Clean, Cut, Lane
from tests.faults.enqueues import CALLER
from tests.faults.lanes import Lanes, open_lanes, watched
from tests.faults.messages import Sender
from tests.faults.operations import WORKER, Operation
from tests.faults.proxy import CUT_AFTER, CUT_BEFORE, HALF_OPEN, Fault, Proxy

EVERY = bool(os.environ.get("SQLANE_EVERY_CUT"))
LANES = 17
DEADLINE = 1.0
"""Seconds for each call."""


@pytest.fixture(scope="module")
def lanes(server, admin: sa.Engine, template_url: str) -> Iterator[Lanes]:  # type: ignore[no-untyped-def]
    template = str(sa.make_url(template_url).database)
    with ExitStack() as stack:
        names = [stack.enter_context(new_database(admin, template)) for _ in range(LANES)]
        yield stack.enter_context(open_lanes([server.url(name, tcp=True) for name in names], DEADLINE))


@pytest.fixture(scope="module")
def tally() -> Iterator[list[Cut]]:
    cuts: list[Cut] = []
    yield cuts
    if not cuts:
        return
    half_open = [cut for cut in cuts if cut.fault.act is HALF_OPEN]
    print(
        f"\n{len(cuts)} cut points ({len(half_open)} half-open), {sum(cut.error is not None for cut in cuts)} errors,"
        f" {sum(cut.recovered for cut in cuts)} recovered; the longest call took {max(cut.took for cut in cuts):.2f} s"
    )


def faults(clean: Clean) -> Iterator[Fault]:
    """Messages that are sent without waiting for an answer are a flight.

    In the last two, COMMIT and its reply, each message counts. Before them the cuts within a flight have one outcome,
    and one message of each flight stands for the others: its first, second, third and so on, from flight to flight.
    """
    n = {"client": 0, "server": 0}
    flights = [(sender, len(list(flight))) for sender, flight in groupby(clean.messages, lambda message: message[0])]
    for index, (sender, length) in enumerate(flights):
        at_commit = index >= len(flights) - 2
        for place in range(length):
            n[sender] += 1
            if EVERY or at_commit or place == index // 2 % length:
                yield Fault(sender, n[sender], CUT_BEFORE)
            if EVERY or place == length - 1:
                yield Fault(sender, n[sender], CUT_AFTER, reset=False)
            if EVERY or at_commit or place == 0:
                yield Fault(sender, n[sender], HALF_OPEN)


@pytest.mark.parametrize("operation", [*WORKER, *CALLER], ids=str)
def test_every_cut(lanes: Lanes, tally: list[Cut], operation: Operation) -> None:
    """Ended in time; then all or nothing; and done again, it is done once."""
    clean = lanes.first.clean(operation)
    assert (clean.before == clean.after) == operation.reads

    def cut(lane: Lane, fault: Fault) -> Cut:
        return lane.cut(operation, clean, fault)

    half_open = lanes.start(cut, [fault for fault in faults(clean) if fault.act is HALF_OPEN])
    cuts = [cut(lanes.first, fault) for fault in faults(clean) if fault.act is not HALF_OPEN]
    cuts += half_open()
    tally += cuts
    assert all(cut.error for cut in cuts if cut.fault.act is not CUT_AFTER)


@pytest.mark.parametrize("operation", [one for one in WORKER if one.name.startswith("claim")], ids=str)
def test_a_claim_that_nobody_knows_of(lanes: Lanes, operation: Operation) -> None:
    """Its reply was lost: its lease ends, and the same jobs are claimed again."""
    lane = lanes.first
    clean = lane.clean(operation)
    replies = [name for sender, name in clean.messages if sender == "server"]
    assert replies[-2:] == ["CommandComplete", "ReadyForQuery"], "the reply of COMMIT"
    assert lane.cut(operation, clean, Fault("server", len(replies) - 1, CUT_BEFORE)).recovered
    end_leases(lane)
    with lane.direct.begin():
        again = operation.run(lane.direct, lane.queue, None)
    assert [job.stalls for job in again] == [1]


def end_leases(lane: Lane) -> None:
    """Recover what runs, due at once and with its keys free."""
    tables = lane.queue.tables
    now = sa.func.statement_timestamp()
    with lane.direct.begin():
        lane.direct.execute(tables.jobs.update().where(tables.jobs.c.status == "running").values(locked_until=now))
    with lane.direct.begin():
        for id_ in store.find_stale(lane.direct, tables, limit=10):
            store.recover_stale(lane.direct, tables, id=id_, lease=60, stall_delay=0)
        lane.direct.execute(tables.mutexes.update().values(held_until=now))


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


def test_every_cut_while_connecting(proxy: Proxy) -> None:
    """Each ends in an error in time, at least in one of some tries, and the next one connects."""
    engine = sa.create_engine(proxy.url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        messages = list(proxy.link_of(conn).messages)
    took = []
    with watched(DEADLINE) as deadlines:
        connector = Connector(engine, deadlines)
        for fault in connecting(messages):
            seconds = min(in_time(refusals(proxy, connector, fault)))
            took.append((seconds, str(fault)))
            connect_and_ask(connector)
        connector.close()
    # libpq takes no less than 2 s for the time to connect in.
    assert max(took)[0] < 2 + LATE, max(took)
    print(f"\n{len(took)} cut points while connecting, the longest try took {max(took)[0]:.2f} s")


def refusals(proxy: Proxy, connector: Connector, fault: Fault) -> Iterator[float]:
    """The seconds until each of some tries has ended in an error."""
    for _ in range(TRIES):
        proxy.arm_next(fault)
        began = time.monotonic()
        with pytest.raises(sa.exc.DBAPIError):
            connect_and_ask(connector)
        seconds = time.monotonic() - began
        proxy.cut()
        yield seconds


def in_time(tries: Iterator[float]) -> Iterator[float]:
    """Up to the first that is."""
    for seconds in tries:
        yield seconds
        if seconds < 2 + LATE:
            return


def connect_and_ask(connector: Connector) -> None:
    database = connector.database()
    try:
        with database.transaction():
            pass
    finally:
        database.close()


def connecting(messages: list[tuple[Sender, str]]) -> Iterator[Fault]:
    """Up to the server's first word that it is ready; silence at each request and at the last reply."""
    ready = messages.index(("server", "ReadyForQuery"))
    n = {"client": 0, "server": 0}
    for sender, name in messages[: ready + 1]:
        n[sender] += 1
        yield Fault(sender, n[sender], CUT_BEFORE)
        if sender == "client" or name == "ReadyForQuery":
            yield Fault(sender, n[sender], HALF_OPEN)
