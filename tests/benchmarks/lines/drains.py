"""Drains of no-op jobs, and what each job costs there."""

from __future__ import annotations

from collections.abc import Callable

from tests.benchmarks.bench import Bench, Figure, Goal, Line, Measure, figures


def drained(kind: str, *wanted: str, workers: int = 1) -> Callable[[Bench], dict[str, Measure]]:
    """Ours with handlers of a kind, and the wanted peers, or all."""

    def sides(bench: Bench) -> dict[str, Measure]:
        peers = [bench.ours(KIND=kind), *bench.peers(*wanted)]
        return {peer.label: lambda peer=peer: figures(bench.drain(peer, workers=workers)) for peer in peers}

    return sides


def costs(peer: str) -> list[Figure]:
    """Shown beside one peer, without a goal."""
    named = {
        "wal": ("WAL a job", "bytes"),
        "server_cpu": ("server CPU a job", "us"),
        "worker_cpu": ("worker CPU a job", "us"),
        "statements": ("statements a job", ""),
        "transactions": ("transactions a job", ""),
    }
    return [Figure(key, unit, title, {peer: NO_GOAL}, always=False) for key, (title, unit) in named.items()]


NO_GOAL = Goal()


def line(name: str, title: str, kind: str, peer: str, goal: float, *wanted: str, workers: int = 1) -> Line:
    rate = Figure("rate", "jobs/s", goals={peer: Goal(goal)})
    return Line(name, title, drained(kind, *wanted, workers=workers), [rate, *costs(peer)])


LINES = [
    line("drain", "drain, 1 worker, def", "def", "graphile", 1.25),
    line("drain-async", "drain, 1 worker, async def", "async", "graphile", 1.1, "graphile"),
    line("drain-transactional", "drain, 1 worker, transactional", "transactional", "procrastinate", 3, "procrastinate"),
    line("drain-2", "drain, 2 workers, def", "def", "graphile", 1.3, workers=2),
]
