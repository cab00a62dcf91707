"""Many small workers against a few large ones, on one backlog."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from sqlane_sa.demo.server import Server
from tests.benchmarks.pressure.figures import count, row
from tests.benchmarks.pressure.load import Crew, beside, enqueue, lost_and_repeated
from tests.benchmarks.pressure.server import database

PROCESSES = 4
MANY, FEW = 64, 4
SLOTS = 64

DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""


class Seen(NamedTuple):
    rate: float
    lost: int
    repeated: int
    connections: int


def run(options: argparse.Namespace) -> None:
    with Server(settings={"max_connections": 6 * MANY}) as server, database(server) as (url, engine):
        for name in ("plain", "keyed"):
            few = drain(url, engine, name, options.jobs, FEW)
            many = drain(url, engine, name, options.jobs, MANY)
            deadlocks = count(engine, DEADLOCKS)
            found = (
                f"{MANY} workers {many.rate / few.rate:.2f} x the rate of {FEW} "
                f"({many.rate:,.0f} and {few.rate:,.0f} jobs/s); "
                f"{deadlocks} deadlocks; at most {many.connections} and {few.connections} connections"
            )
            done = f"{MANY} workers of concurrency {SLOTS // MANY} and {FEW} of {SLOTS // FEW}, {name} jobs"
            row("workers", done, 2 * options.jobs, few.lost + many.lost, few.repeated + many.repeated, found)
            if deadlocks:
                raise SystemExit(f"{deadlocks} deadlocks")


def drain(url: str, engine: sa.Engine, name: str, jobs: int, workers: int) -> Seen:
    crew = Crew(url, processes=PROCESSES, workers=workers // PROCESSES, concurrency=SLOTS // workers, names=[name])
    peaks = [0]
    with beside(watch(engine, peaks)), crew.working():
        # Not before: what is measured is no start of workers.
        enqueue(engine, name, jobs)
        crew.wait(jobs)
    times = [one.at for one in crew.runs]
    return Seen(jobs / (max(times) - min(times)), *lost_and_repeated(crew.runs, jobs), max(peaks))


def watch(engine: sa.Engine, peaks: list[int]) -> Callable[[threading.Event], None]:
    def loop(stop: threading.Event) -> None:
        while not stop.wait(0.2):
            peaks.append(count(engine, CONNECTIONS))

    return loop
