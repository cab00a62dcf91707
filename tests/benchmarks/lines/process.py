"""What a process takes: memory beside a large backlog, and the time of the import."""

from __future__ import annotations

import statistics
import subprocess
import sys

from tests.benchmarks import fill
from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure, figures

BACKLOG = 50
IMPORTS = 15

# With the dialect, which every engine on PostgreSQL loads.
CORE = "import sqlalchemy, sqlalchemy.dialects.postgresql"
PACKAGE = "import sqlane_sa"
NAMES = "from sqlane_sa import Queue, Worker"

# Of the processor: a process that only imports waits for nothing but its turn.
TIMED = "import time; begin = time.process_time(); {}; print(1000 * (time.process_time() - begin))"


def memory(bench: Bench) -> dict[str, Measure]:
    """After a drain's worth of jobs off the backlog, or what it did until the limit."""
    peer = bench.ours()

    def measure() -> Figures:
        return figures(
            bench.drain(peer, prepare=lambda dsn: fill.rows(dsn, BACKLOG * bench.jobs), left_sql="SELECT 1 LIMIT 0")
        )

    return {"ours": measure}


def imports(bench: Bench) -> dict[str, Measure]:
    """In turn, so that noise hits all; the differences of the medians. The package loads its names when they are first
    asked for: an import alone says little, so the names that every application takes are measured as well."""

    def measure() -> Figures:
        times: dict[str, list[float]] = {statement: [] for statement in (CORE, PACKAGE, NAMES)}
        for _ in range(IMPORTS):
            for statement, found in times.items():
                found.append(import_ms(statement))
        core, package, names = (statistics.median(found) for found in times.values())
        return {"package": package - core, "names": names - core}

    return {"ours": measure}


def import_ms(statement: str) -> float:
    done = subprocess.run([sys.executable, "-c", TIMED.format(statement)], capture_output=True, text=True, check=True)
    return float(done.stdout)


LINES = [
    Line(
        "memory",
        "memory of a worker at {50} due jobs",
        memory,
        [Figure("memory", "MB", goals={"": Goal(most=80, own=True)})],
        once=True,
    ),
    Line(
        "import",
        "CPU over importing SQLAlchemy Core",
        imports,
        [
            Figure("package", "ms", PACKAGE, {"": Goal(most=30, own=True)}),
            Figure("names", "ms", NAMES, {"": Goal(most=30, own=True)}),
        ],
    ),
]
