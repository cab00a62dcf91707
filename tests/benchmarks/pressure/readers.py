"""Readers beside: stats, single jobs and full scans, all of them without a pause worth the name."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from sqlane_sa.demo.server import Server
from tests.benchmarks.pressure.figures import percentile, row
from tests.benchmarks.pressure.load import Crew, Producers, Run, beside, definitions, lost_and_repeated
from tests.benchmarks.pressure.server import database

HISTORY = 200_000
SECONDS = 20.0
PAUSE = 0.01

FILL = """
INSERT INTO sqlane_jobs (id, job_name, status, finished_at, expires_at)
SELECT lpad(n::text, 26, '0'), 'plain', 'completed', statement_timestamp(), statement_timestamp() + interval '1 day'
FROM generate_series(1, :n) AS n"""


def run(options: argparse.Namespace) -> None:
    with Server() as server, database(server) as (url, engine):
        with engine.begin() as conn:
            conn.execute(sa.text(FILL), {"n": HISTORY})
        crew, producers = Crew(url, processes=2, concurrency=10, names=["plain"]), Producers(url, options.rate)
        reads: Counter[str] = Counter()
        with crew.working():
            with producers.producing():
                time.sleep(SECONDS / 2)
                alone = time.time()
                time.sleep(SECONDS)
                begin = time.time()
                with beside(*(reader(engine, kind, read, reads) for kind, read in READS.items())):
                    time.sleep(SECONDS)
                    end = time.time()
            crew.wait(producers.committed)
        report(within(crew.runs, alone, begin), within(crew.runs, begin, end), reads, crew.runs, producers.committed)


def within(runs: Sequence[Run], begin: float, end: float) -> list[float]:
    return [one.waited for one in runs if begin <= one.at < end]


def report(alone: list[float], read: list[float], reads: Counter[str], runs: Sequence[Run], committed: int) -> None:
    p50, p99 = (percentile(read, share) / percentile(alone, share) for share in (0.5, 0.99))
    counts = ", ".join(f"{n:,} {kind}" for kind, n in sorted(reads.items()))
    found = (
        f"rate {len(read) / len(alone):.2f} x that without readers; pick-up p50 {p50:.1f} x "
        f"({1000 * percentile(read, 0.5):.1f} and {1000 * percentile(alone, 0.5):.1f} ms), p99 {p99:.1f} x; "
        f"read meanwhile: {counts}"
    )
    done = f"readers without a pause over {HISTORY:,} ended jobs, {SECONDS:g} s with and without"
    row("readers", done, committed, *lost_and_repeated(runs, committed), found)


def reader(
    engine: sa.Engine, kind: str, read: Callable[[sa.Connection], object], reads: Counter[str]
) -> Callable[[threading.Event], None]:
    def loop(stop: threading.Event) -> None:
        with engine.connect() as conn:
            while not stop.wait(PAUSE):
                with conn.begin():
                    read(conn)
                reads[kind] += 1

    return loop


def stats(conn: sa.Connection) -> object:
    return definitions().stats(conn)


def get(conn: sa.Connection) -> object:
    return definitions().get(conn, f"{random.randint(1, HISTORY):026}")


def scan(conn: sa.Connection) -> object:
    return conn.exec_driver_sql(
        "SELECT count(*), max(length(id) + coalesce(length(last_error::text), 0)) FROM sqlane_jobs"
    ).all()


READS = {"stats": stats, "gets": get, "full scans": scan}
