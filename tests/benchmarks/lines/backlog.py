"""What else stands in the tables: jobs scheduled ahead, history, better priorities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa

from sqlane_sa import Queue, store
from tests.benchmarks import explain, fill
from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure, figures

MANY = 50
BETTER = 15
HISTORY = 150
LIVE_SHARE = 4
LOOKS = 20

EMPTY = "ours, empty queue"


def beside(prepare: Callable[[int], Callable[[str], object]], factor: int) -> Callable[[Bench], dict[str, Measure]]:
    def sides(bench: Bench) -> dict[str, Measure]:
        peer = bench.ours()
        return {
            "ours": lambda: figures(bench.drain(peer, prepare=prepare(factor * bench.jobs))),
            EMPTY: lambda: figures(bench.drain(peer)),
        }

    return sides


def statistics(bench: Bench) -> dict[str, Measure]:
    """D55: the counts by name, beside a long history."""

    def look(conn: sa.Connection, queue: Queue) -> object:
        return store.stats(conn, queue.tables)

    def prepare(dsn: str) -> None:
        fill.rows(dsn, HISTORY * bench.jobs, status="completed")
        fill.rows(dsn, bench.jobs // LIVE_SHARE, kind="1")

    return {"ours": lambda: looked(bench, prepare, look)}


def fetch(bench: Bench) -> dict[str, Measure]:
    """D49: 40,000 jobs of one busy key, some that can start, and a history."""
    queue = Queue()
    queue.define("noop", mutex_keys=["k"])

    def look(conn: sa.Connection, _: Queue) -> object:
        return store.find_candidates(conn, queue.tables, limits_by_name={"noop": 10})

    def prepare(dsn: str) -> None:
        fill.rows(dsn, MANY * bench.jobs, status="completed")
        fill.hold_key(dsn)
        fill.rows(dsn, 2 * bench.jobs, keys="ARRAY['held']", due="-1 hour", kind="1")
        fill.rows(dsn, 10, keys="ARRAY['free:' || n]", kind="2")
        fill.rows(dsn, bench.jobs // 2, kind="3")

    return {"ours": lambda: looked(bench, prepare, look)}


def looked(bench: Bench, prepare: Callable[[str], object], look: Callable[..., Any]) -> Figures:
    """Milliseconds and pages of an operation: the best of a few, for the first reads from the disk."""
    peer = bench.ours()
    with bench.database(peer) as dsn:
        prepare(dsn)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("CHECKPOINT")
        url = dsn.replace("postgresql://", "postgresql+psycopg://")
        with explain.explained(url) as (engine, plans), engine.connect() as conn:
            costs = []
            for _ in range(LOOKS):
                plans.clear()
                store.pin_plans(conn)
                look(conn, Queue())
                conn.rollback()
                costs.append((sum(plan.ms for plan in plans), sum(plan.buffers for plan in plans)))
    return {"ms": min(ms for ms, _ in costs), "buffers": min(buffers for _, buffers in costs)}


LINES = [
    Line(
        name,
        title,
        beside(prepare, factor),
        [Figure("rate", "jobs/s", goals={EMPTY: Goal(0.85)})],
    )
    for name, title, prepare, factor in (
        ("ahead", "drain, {50} jobs scheduled ahead", fill.future, MANY),
        ("history", "drain, {50} completed jobs retained, never analysed", fill.history, MANY),
        ("better", "drain, {15} future jobs of better priority", fill.better, BETTER),
    )
] + [
    Line(
        "fetch",
        "fetch of keyed jobs behind a busy key",
        fetch,
        [
            Figure("ms", "ms", "time", {"": Goal(most=5, own=True)}),
            Figure("buffers", "pages", "buffers", {"": Goal(most=200, own=True)}),
        ],
        once=True,
    ),
    Line(
        "stats",
        "stats, {150} completed jobs",
        statistics,
        [Figure("ms", "ms", goals={"": Goal(most=50, own=True)}), Figure("buffers", "pages", "buffers")],
        once=True,
    ),
]
