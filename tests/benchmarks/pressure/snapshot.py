"""A snapshot held open while jobs come and go: no row that dies meanwhile can be removed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.demo.server import Server
from sqlane_sa.values.health import Health, TableHealth
from tests.benchmarks.pressure import plans
from tests.benchmarks.pressure.figures import note, percentile, row
from tests.benchmarks.pressure.load import Crew, Producers, Run, definitions, lost_and_repeated
from tests.benchmarks.pressure.server import database

WARM_UP = 10.0
FIFTHS = 5
LONGEST_RECOVERY = 150.0
WINDOW = 5.0


class Fifth(NamedTuple):
    """Of the time the snapshot is held: from and to in epoch seconds; and at its end, what `store.health` says, and the
    pages that a claim touches."""

    begin: float
    end: float
    health: Health
    claim_pages: int


def run(options: argparse.Namespace) -> None:
    with Server() as server, database(server) as (url, engine):
        crew = Crew(url, processes=2, concurrency=10, names=["plain"])
        producers = Producers(url, options.rate)
        with crew.working():
            with producers.producing():
                time.sleep(WARM_UP)
                with snapshot(engine):
                    fifths = list(hold(engine, options.minutes * 60))
                released = time.time()
                recovery = recover(engine, fifths[-1].health)
            crew.wait(producers.committed)
        report(crew.runs, fifths, released, recovery, producers.committed, options)


@contextmanager
def snapshot(engine: sa.Engine) -> Iterator[None]:
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
        conn.exec_driver_sql("SELECT count(*) FROM sqlane_jobs")
        yield


def hold(engine: sa.Engine, seconds: float) -> Iterator[Fifth]:
    for _ in range(FIFTHS):
        begin = time.time()
        time.sleep(seconds / FIFTHS)
        yield Fifth(begin, time.time(), health(engine), plans.claim(engine))


def health(engine: sa.Engine) -> Health:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        return store.health(conn, definitions().tables)


def jobs_table(of: Health) -> TableHealth:
    (found,) = (table for table in of.tables if table.name == "sqlane_jobs")
    return found


class Recovery(NamedTuple):
    """Seconds until a tenth of the dead rows was left (None: it did not come), and the pages of a claim then."""

    took: float | None
    claim_pages: int


def recover(engine: sa.Engine, worst: Health) -> Recovery:
    begin = time.monotonic()
    while time.monotonic() - begin < LONGEST_RECOVERY:
        time.sleep(1)
        if jobs_table(health(engine)).dead_rows < jobs_table(worst).dead_rows / 10:
            took = time.monotonic() - begin
            time.sleep(4 * WINDOW)
            return Recovery(took, plans.claim(engine))
    return Recovery(None, plans.claim(engine))


def report(
    runs: Sequence[Run],
    fifths: Sequence[Fifth],
    released: float,
    recovery: Recovery,
    committed: int,
    options: argparse.Namespace,
) -> None:
    held = [between(runs, fifth.begin, fifth.end) for fifth in fifths]
    for place, (fifth, inside) in enumerate(zip(fifths, held, strict=True), 1):
        note(f"fifth {place}: {described(fifth, inside)}")
    rates = [len(inside) / (fifth.end - fifth.begin) for fifth, inside in zip(fifths, held, strict=True)]
    before = between(runs, fifths[0].begin - WARM_UP / 2, fifths[0].begin)
    worst, usual = p(held[-1], 0.5), p(before, 0.5)
    again = next(
        (at - released for at in windows(runs, released) if p(between(runs, at, at + WINDOW), 0.5) < 2 * usual), None
    )
    last = fifths[-1].health
    found = (
        f"rate of the last fifth {rates[-1] / rates[0]:.2f} x the first; pick-up p50 {worst / usual:.1f} x as long "
        f"({1000 * worst:.1f} and {1000 * usual:.1f} ms), p99 {p(held[-1], 0.99) / p(before, 0.99):.1f} x; "
        f"a claim touches {fifths[-1].claim_pages:,} pages, {fifths[0].claim_pages:,} after the first fifth; "
        f"{jobs_table(last).dead_rows:,} dead rows, {size(last) >> 20} MB; health: "
        f"{last.snapshot.transactions if last.snapshot else 0:,} transactions over "
        f"{(last.snapshot.age_ms or 0) / 1000 if last.snapshot else 0:.0f} s; after its end p50 within 2 x in "
        f"{shown(again)}, dead rows gone in {shown(recovery.took)}, a claim touches {recovery.claim_pages:,} pages"
    )
    done = f"REPEATABLE READ for {options.minutes:g} min at {options.rate:g} jobs/s"
    row("snapshot", done, committed, *lost_and_repeated(runs, committed), found)


def between(runs: Sequence[Run], begin: float, end: float) -> list[Run]:
    return [one for one in runs if begin <= one.at < end]


def windows(runs: Sequence[Run], begin: float) -> Iterator[float]:
    last = max(one.at for one in runs)
    while begin + WINDOW <= last:
        yield begin
        begin += 1.0


def p(runs: Sequence[Run], share: float) -> float:
    return percentile([one.waited for one in runs], share)


def size(of: Health) -> int:
    return sum(table.bytes + table.index_bytes for table in of.tables)


def described(fifth: Fifth, inside: Sequence[Run]) -> str:
    table, held = jobs_table(fifth.health), fifth.health.snapshot
    return (
        f"{len(inside) / (fifth.end - fifth.begin):,.0f} jobs/s, pick-up p50 {1000 * p(inside, 0.5):.1f} ms, "
        f"p99 {1000 * p(inside, 0.99):.1f} ms; jobs has {table.dead_rows:,} dead rows, "
        f"all tables {size(fifth.health) >> 20} MB; a claim touches {fifth.claim_pages:,} pages; "
        f"snapshot of {held and held.kind}, {(held.age_ms or 0) / 1000 if held else 0:.0f} s, "
        f"{held.transactions if held else 0:,} transactions"
    )


def shown(seconds: float | None) -> str:
    return "no time (it did not come)" if seconds is None else f"{seconds:.0f} s"
