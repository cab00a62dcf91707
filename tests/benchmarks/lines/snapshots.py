"""A snapshot held open from before the run: no row that dies meanwhile can be removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure
from tests.benchmarks.drain import Drained, drain
from tests.benchmarks.peers import Peer

JOBS = 5
FIFTH = 0.2
LONG_JOBS = 10
WORKERS = 4
PARTS = 20
LIMIT = 300.0
RECOVERED = 0.85
LONGEST_RECOVERY = 120.0


@contextmanager
def snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")
        yield


class Held:
    """One run is the measurement of both sides: the last fifth of its jobs, and the first."""

    def __init__(self, run: Callable[[], Figures]) -> None:
        self._run = run
        self._first: list[float] = []

    def last(self) -> Figures:
        found = self._run()
        self._first.append(found["first"])
        return found

    def first(self) -> Figures:
        return {"rate": self._first[-1]}


def under_snapshot(bench: Bench, peer: Peer, jobs: int, workers: int) -> Drained:
    with bench.database(peer) as dsn:
        peer.call("bulk", dsn, jobs)
        return drained_under_snapshot(bench, peer, dsn, jobs, workers)


def drained_under_snapshot(bench: Bench, peer: Peer, dsn: str, jobs: int, workers: int) -> Drained:
    with snapshot(dsn):
        return drain(bench.ground, peer, dsn, jobs, workers=workers, limit=LIMIT, sessions=1)


def fifths(bench: Bench) -> dict[str, Measure]:
    def run() -> Figures:
        found = under_snapshot(bench, bench.ours(), JOBS * bench.jobs, 1)
        return {"rate": found.part(1 - FIFTH, 1), "first": found.part(0, FIFTH)}

    held = Held(run)
    return {"ours, last fifth": held.last, "ours, first fifth": held.first}


def four_workers(bench: Bench) -> dict[str, Measure]:
    """D50: the slowest of twenty parts, and how soon all is as before once the snapshot is gone."""

    def run() -> Figures:
        peer, jobs = bench.ours(), LONG_JOBS * bench.jobs
        with bench.database(peer) as dsn:
            peer.call("bulk", dsn, jobs)
            found = drained_under_snapshot(bench, peer, dsn, jobs, WORKERS)
            parts = [found.part(part / PARTS, (part + 1) / PARTS) for part in range(PARTS)]
            recovery = recovered(bench, peer, dsn)
        return {"rate": min(parts), "first": parts[0], "recovery": recovery}

    held = Held(run)
    return {"ours, slowest": held.last, "ours, first": held.first}


def recovered(bench: Bench, peer: Peer, dsn: str) -> float:
    """Seconds until a drain is as fast as on an empty queue, or those it was waited for."""
    usual = bench.drain(peer).rate
    begin = time.monotonic()
    while time.monotonic() - begin < LONGEST_RECOVERY:
        waited = time.monotonic() - begin
        peer.call("bulk", dsn, bench.jobs)
        if drain(bench.ground, peer, dsn, bench.jobs, limit=bench.limit).rate >= RECOVERED * usual:
            return waited
        time.sleep(1)
    return LONGEST_RECOVERY


LINES = [
    Line(
        "snapshot",
        "drain under a held snapshot, last fifth of {5}",
        fifths,
        [Figure("rate", "jobs/s", goals={"ours, first fifth": Goal(0.85)})],
        paired=True,
    ),
    Line(
        "snapshot-long",
        "4 workers under a held snapshot, slowest of 20 parts of {10}",
        four_workers,
        [
            Figure("rate", "jobs/s", goals={"ours, first": Goal(0.2)}),
            Figure("recovery", "s", "until recovered", {"": Goal(most=60, own=True)}, always=False),
        ],
        once=True,
        paired=True,
    ),
]
