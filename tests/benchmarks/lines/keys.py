"""Jobs with mutex keys, and many workers on one backlog."""

from __future__ import annotations

import math

import psycopg

from tests.benchmarks import fill
from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure, figures
from tests.benchmarks.drain import burst
from tests.benchmarks.pressure.workers import DEADLOCKS, FEW, MANY, PROCESSES, SLOTS

JOBS = 5
LIMIT = 120.0
UNKEYED = "ours, unkeyed"


def held(bench: Bench) -> dict[str, Measure]:
    jobs = JOBS * bench.jobs
    keyed = bench.ours(KIND="keyed", KEYS=bench.jobs)
    return {
        "ours": lambda: figures(
            bench.drain(keyed, jobs=jobs, prepare=fill.held(jobs), left_sql=fill.LEFT_BUT_HELD, limit=LIMIT)
        ),
        UNKEYED: lambda: figures(bench.drain(bench.ours(), jobs=jobs, limit=LIMIT)),
    }


def distinct(bench: Bench) -> dict[str, Measure]:
    return {
        "ours": lambda: figures(bench.drain(bench.ours(KIND="keyed"))),
        UNKEYED: lambda: figures(bench.drain(bench.ours())),
    }


def fleet(bench: Bench) -> dict[str, Measure]:
    return {
        f"ours, {workers} of {SLOTS // workers}": lambda workers=workers: many(bench, workers)
        for workers in (MANY, FEW)
    }


def many(bench: Bench, workers: int) -> Figures:
    """In a few processes: sixty-four interpreters on a small machine would measure its memory."""
    peer = bench.ours(WORKERS=workers // PROCESSES, CONC=SLOTS // workers)
    with bench.database(peer) as dsn:
        rate = burst(peer, dsn, bench.jobs, workers=PROCESSES, limit=LIMIT)
        with psycopg.connect(dsn) as conn:
            row = conn.execute(DEADLOCKS).fetchone()
    return {"rate": rate, "deadlocks": float(row[0]) if row else math.nan}


LINES = [
    Line(
        "held",
        "{5} jobs over {1} keys behind {5} on a held key",
        held,
        [Figure("rate", "jobs/s", goals={UNKEYED: Goal(0.5)})],
    ),
    Line(
        "keyed",
        "drain, 1 worker, a key of its own each",
        distinct,
        [Figure("rate", "jobs/s", goals={UNKEYED: Goal(0.5)})],
    ),
    Line(
        "fleet",
        f"{MANY} workers of concurrency {SLOTS // MANY}",
        fleet,
        [
            Figure("rate", "jobs/s", goals={f"ours, {FEW} of {SLOTS // FEW}": Goal(0.6)}),
            Figure("deadlocks", "", "deadlocks", {"": Goal(most=0, own=True)}, always=False),
        ],
    ),
]
