"""How soon a job is picked up: by an idle worker, and beside a large backlog of another name."""

from __future__ import annotations

import time

from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure
from tests.benchmarks.peers import Peer
from tests.benchmarks.pressure.figures import percentile
from tests.benchmarks.working import Crew, crew

PICKUPS = 200
GAP_MS = 20
SETTLED = 4.0
PATIENCE = 20.0

SMALL_JOBS = 50
SMALL_GAP_MS = 200
BIG_MS = 0.5
POLL_MS = 1000.0


def idle(bench: Bench) -> dict[str, Measure]:
    return {peer.label: lambda peer=peer: pick_up(bench, peer) for peer in [bench.ours(), *bench.peers()]}


def pick_up(bench: Bench, peer: Peer) -> Figures:
    with bench.database(peer) as dsn, crew(peer, dsn, 1, "lat") as working:
        working.wait_for_start()
        time.sleep(SETTLED)
        return waits(working, peer, dsn, PICKUPS, GAP_MS)


def waits(working: Crew, peer: Peer, dsn: str, jobs: int, gap_ms: float) -> Figures:
    """From the end of the commit to the start of the handler, in ms."""
    committed = {number: after for number, _, after in peer.call("trickle", dsn, jobs, gap_ms)["t"]}
    (process,) = working
    deadline = time.time() + PATIENCE
    while len(found := [one for one in process.latencies if one[0] in committed]) < jobs:
        working.look()
        if time.time() > deadline:
            raise RuntimeError(f"{len(found)} of {jobs} jobs were picked up in {PATIENCE:g} s")
    waited = [1000 * (at - committed[number]) for number, at in found]
    return {f"p{share}": percentile(waited, share / 100) for share in (50, 95, 99)}


def starved(bench: Bench) -> dict[str, Measure]:
    """F73: a name with all that a worker can do, and one with a job now and then."""
    peer = bench.ours(BIG_MS=BIG_MS)

    def measure() -> Figures:
        with bench.database(peer) as dsn:
            peer.call("bulk", dsn, 5 * bench.jobs)
            with crew(peer, dsn, 1, "lat") as working:
                working.wait_for_start()
                return waits(working, peer, dsn, SMALL_JOBS, SMALL_GAP_MS)

    return {"ours": measure}


LINES = [
    Line(
        "pick-up",
        "pick-up, idle worker",
        idle,
        [
            Figure("p50", "ms", "p50", {"graphile": Goal(most=1.0)}),
            Figure("p99", "ms", "p99", {"graphile": Goal(most=5.0, own=True)}),
        ],
    ),
    Line(
        "starved",
        "pick-up beside {5} due jobs of another name",
        starved,
        [Figure("p95", "ms", "p95", {"": Goal(most=2 * POLL_MS, own=True)})],
    ),
]
