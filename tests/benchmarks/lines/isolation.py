"""The isolation level that the application chose for its engine or its database."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql

from tests.benchmarks.bench import Bench, Figure, Goal, Line, Measure, figures

WORKERS = 4
DEFAULT = "ours, READ COMMITTED"


def by_the_engine(level: str) -> Callable[[Bench], dict[str, Measure]]:
    def sides(bench: Bench) -> dict[str, Measure]:
        return {
            "ours": lambda: figures(bench.drain(bench.ours(ISOLATION=level), workers=WORKERS)),
            DEFAULT: lambda: figures(bench.drain(bench.ours(), workers=WORKERS)),
        }

    return sides


def by_the_database(bench: Bench) -> dict[str, Measure]:
    return {
        "ours": lambda: figures(bench.drain(bench.ours(), workers=WORKERS, prepare=serializable)),
        DEFAULT: lambda: figures(bench.drain(bench.ours(), workers=WORKERS)),
    }


def serializable(dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        statement = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'")
        conn.execute(statement.format(sql.Identifier(conn.info.dbname)))


LINES = [
    Line(name, f"drain, {WORKERS} workers, {title}", sides, [Figure("rate", "jobs/s", goals={DEFAULT: Goal(0.8)})])
    for name, title, sides in (
        ("repeatable-read", "an engine at REPEATABLE READ", by_the_engine("REPEATABLE READ")),
        ("serializable", "an engine at SERIALIZABLE", by_the_engine("SERIALIZABLE")),
        ("serializable-database", "a database at SERIALIZABLE", by_the_database),
    )
]
