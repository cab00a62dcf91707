"""What the plots show: rates against a backlog, against a held snapshot, against the number of workers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.benchmarks import fill
from tests.benchmarks.bench import Bench
from tests.benchmarks.drain import burst
from tests.benchmarks.lines.snapshots import under_snapshot
from tests.benchmarks.peers import Peer

BACKLOGS = (0.0, 0.5, 5.0, 50.0)
SNAPSHOT_JOBS = 5
PARTS = 20
WORKERS = (1, 2, 4, 16, 64)
MOST_OF_OTHERS = 16
"""Worker processes of another queue: each is a runtime of its own, and some open ten connections."""
LIMIT = 60.0

Curves = dict[str, dict[str, list[tuple[float, float]]]]
"""Plot to queue to points."""


def measure(bench: Bench, rounds: int, sizes: Sequence[int], note: Callable[[str], None]) -> Curves:
    """`sizes` are numbers of worker processes. A queue that fails in one plot is missing in it."""
    plots: dict[str, Callable[[Bench, Peer], list[tuple[float, float]]]] = {
        "backlog": backlog,
        "snapshot": snapshot,
        "workers": partial(workers, sizes=sizes),
    }
    found: Curves = {plot: {} for plot in plots}
    for plot, points in plots.items():
        samples: dict[str, list[list[tuple[float, float]]]] = {}
        for _ in range(rounds):
            for peer in [bench.ours("sqlane_sa"), *bench.peers()]:
                note(f"plot {plot}, {peer.label}")
                try:
                    samples.setdefault(peer.label, []).append(points(bench, peer))
                except Exception as error:
                    note(f"{peer.label}: {error}")
        found[plot] = {label: medians(taken) for label, taken in samples.items() if taken}
    return found


def medians(taken: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Point by point; a run that has fewer ends the curve, and one too short for a rate at a point leaves it out."""
    found = []
    for points in zip(*taken, strict=False):
        rates = [rate for _, rate in points if not math.isnan(rate)]
        if rates:
            found.append((points[0][0], statistics.median(rates)))
    return found


def backlog(bench: Bench, peer: Peer) -> list[tuple[float, float]]:
    """By how many jobs are scheduled ahead."""
    counts = [int(factor * bench.jobs) for factor in BACKLOGS]
    return [(count, bench.drain(peer, prepare=lambda dsn, n=count: ahead(peer, dsn, n)).rate) for count in counts]


def ahead(peer: Peer, dsn: str, count: int) -> None:
    if count == 0:
        return
    if peer.info.get("future_sql"):
        fill.future_of(peer.info, count, dsn)
    elif peer.label == "sqlane_sa":
        fill.future(count)(dsn)
    else:
        peer.call("future", dsn, count)


def snapshot(bench: Bench, peer: Peer) -> list[tuple[float, float]]:
    """By how many jobs were done."""
    found = under_snapshot(bench, peer, SNAPSHOT_JOBS * bench.jobs, 1)
    shares = [part / PARTS for part in range(PARTS)]
    return [(found.done * (share + 0.5 / PARTS), found.part(share, share + 1 / PARTS)) for share in shares]


def workers(bench: Bench, peer: Peer, sizes: Sequence[int]) -> list[tuple[float, float]]:
    """By how many processes; concurrency as each queue has it."""
    most = max(sizes) if peer.label == "sqlane_sa" else MOST_OF_OTHERS
    points: list[tuple[float, float]] = []
    for count in (count for count in sizes if count <= most):
        with bench.database(peer) as dsn:
            points.append((count, burst(peer, dsn, bench.jobs, workers=count, limit=LIMIT)))
    return points


def as_curves(kept: Any) -> Curves:
    return {plot: {label: [(x, y) for x, y in points] for label, points in by.items()} for plot, by in kept.items()}
