"""Enqueueing: one by one, in bulk, by COPY."""

from __future__ import annotations

import inspect

from sqlane_sa import Queue
from tests.benchmarks.bench import Bench, Figure, Figures, Goal, Line, Measure
from tests.benchmarks.peers import Peer

ONE_SHARE = 10


def timed(bench: Bench, peer: Peer, operation: str, count: int) -> Figures:
    with bench.database(peer) as dsn:
        bench.ground.admin.execute("CHECKPOINT")
        before = bench.ground.usage(dsn)
        seconds = peer.call(operation, dsn, count)["s"]
        wal = bench.ground.usage(dsn).wal - before.wal
    return {"rate": count / seconds, "wal": wal / count}


def one_by_one(bench: Bench) -> dict[str, Measure]:
    count = max(1, bench.jobs // ONE_SHARE)
    return {peer.label: lambda peer=peer: timed(bench, peer, "one", count) for peer in [bench.ours(), *bench.peers()]}


def bulk(bench: Bench) -> dict[str, Measure]:
    return {
        peer.label: lambda peer=peer: timed(bench, peer, "bulk", bench.jobs) for peer in [bench.ours(), *bench.peers()]
    }


def copy(bench: Bench) -> dict[str, Measure] | str:
    if "copy" not in inspect.signature(Queue.enqueue_many).parameters:
        return "enqueue_many has no copy option yet"
    sides = [bench.ours("ours, COPY", COPY=1), bench.ours("ours, bulk")]
    return {peer.label: lambda peer=peer: timed(bench, peer, "bulk", bench.jobs) for peer in sides}


LINES = [
    Line("one", "enqueue one by one", one_by_one, [Figure("rate", "jobs/s", goals={"ref_psycopg": Goal(0.9)})]),
    Line("bulk", "enqueue in bulk", bulk, [Figure("rate", "jobs/s", goals={"ref_sacore": Goal(0.9)})]),
    Line("copy", "enqueue by COPY", copy, [Figure("rate", "jobs/s", goals={"ours, bulk": Goal(2)})]),
]
