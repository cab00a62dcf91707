"""What a process takes: memory beside a large backlog, and the time of the import."""

from __future__ import annotations

import statistics
import subprocess
import sys

from tests.benchmarks import fill
from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure, figures

BACKLOG = 50
IMPORTS = 15

# Of the processor: a process that only imports waits for nothing but its turn.
TIMED = "import time; begin = time.process_time(); import {}; print(1000 * (time.process_time() - begin))"


def memory(bench: Bench) -> dict[str, Measure]:
    """After a drain's worth of jobs off the backlog, or what it did until the limit."""
    peer = bench.ours()

    def measure() -> Figures:
        return figures(
            bench.drain(peer, prepare=lambda dsn: fill.rows(dsn, BACKLOG * bench.jobs), left_sql="SELECT 1 LIMIT 0")
        )

    return {"ours": measure}


def imports(bench: Bench) -> dict[str, Measure]:
    """In turn, so that noise hits both; the difference of the medians."""

    def measure() -> Figures:
        times: dict[str, list[float]] = {"sqlalchemy": [], "sqlane_sa": []}
        for _ in range(IMPORTS):
            for module, found in times.items():
                found.append(import_ms(module))
        core, package = (statistics.median(found) for found in times.values())
        return {"over": package - core}

    return {"ours": measure}


def import_ms(module: str) -> float:
    done = subprocess.run([sys.executable, "-c", TIMED.format(module)], capture_output=True, text=True, check=True)
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
        "import sqlane_sa, over SQLAlchemy Core (CPU)",
        imports,
        [Figure("over", "ms", goals={"": Goal(most=30, own=True)})],
    ),
]
