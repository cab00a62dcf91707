"""Many writers, each job a transaction of its own: what wake-ups cost them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg

from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure
from tests.benchmarks.peers import Peer
from tests.benchmarks.pressure.load import beside
from tests.benchmarks.working import crew

SETTLED = 2.0
PAUSE = 0.01
OFF = "ours, wake-ups off"

# What a NOTIFY takes at the commit is a lock on the database as an object.
LOCK_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'object'"


def compared(clients: int, jobs: Callable[[Bench], int]) -> Callable[[Bench], dict[str, Measure]]:
    def sides(bench: Bench) -> dict[str, Measure]:
        peers = {"ours": bench.ours(WAKEUPS=1), OFF: bench.ours(WAKEUPS=0)}
        return {label: lambda peer=peer: write(bench, peer, clients, jobs(bench)) for label, peer in peers.items()}

    return sides


def write(bench: Bench, peer: Peer, clients: int, jobs: int) -> Figures:
    """Beside one worker, which was idle before."""
    waits: list[int] = []
    with bench.database(peer) as dsn, crew(peer, dsn) as working:
        working.wait_for_start()
        time.sleep(SETTLED)
        with beside(watch(bench, waits)):
            written = peer.call("writers", dsn, max(jobs, clients), clients)
    return {"rate": written["n"] / written["s"], "lock waits": float(sum(waits))}


def watch(bench: Bench, waits: list[int]) -> Callable[[threading.Event], None]:
    def loop(stop: threading.Event) -> None:
        with psycopg.connect(bench.ground.dsn("postgres"), autocommit=True) as conn:
            while not stop.wait(PAUSE):
                row = conn.execute(LOCK_WAITS).fetchone()
                waits.append(row[0] if row else 0)

    return loop


FIGURES = [
    Figure("rate", "jobs/s", goals={OFF: Goal(0.95)}),
    Figure("lock waits", "seen", "waits for the lock of a NOTIFY"),
]

LINES = [
    Line("writers", "16 writers, wake-ups on", compared(16, lambda bench: bench.jobs), FIGURES),
    Line("writers-32", "32 writers of 200 jobs each", compared(32, lambda bench: 32 * 200), FIGURES, once=True),
]
