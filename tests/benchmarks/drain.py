"""A backlog worked off: how fast, and what each job cost."""

from __future__ import annotations

import bisect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from tests.benchmarks.ground import Ground, Usage
from tests.benchmarks.peers import Peer
from tests.benchmarks.working import Crew, crew

LEFT_PAUSE = 0.01
MEMORY_PAUSE = 0.2
SETTLED = 2.0
"""Seconds that workers get to become idle."""


@dataclass
class Drained:
    """`rate` in jobs a second; `costs` of each job by name; `curve` is (seconds, jobs done). `capped`: the limit came
    first, and the rate is that of the jobs done until then."""

    rate: float
    done: int
    capped: bool
    memory: float
    costs: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, int]] = field(default_factory=list)

    def part(self, begin: float, end: float) -> float:
        """The rate from one share of the jobs (0 to 1) to another; that of the first begins with the first report, for
        what a worker's start takes is none of theirs."""
        return rate_between(self.curve, max(1, int(begin * self.done)), int(end * self.done))


def rate_between(curve: Sequence[tuple[float, int]], first: int, last: int) -> float:
    """Jobs a second from the `first` job done to the `last`, between the reports next to them."""
    counts = [count for _, count in curve]
    low, high = (min(bisect.bisect_left(counts, count), len(curve) - 1) for count in (first, last))
    (t0, n0), (t1, n1) = curve[low], curve[high]
    return (n1 - n0) / (t1 - t0) if t1 > t0 else float("nan")


def drain(
    ground: Ground,
    peer: Peer,
    dsn: str,
    jobs: int,
    *,
    workers: int = 1,
    limit: float = 15.0,
    left_sql: str = "",
    sessions: int = 0,
) -> Drained:
    """From the workers' start until all handlers ran and nothing is open any more, by `left_sql` or the peer's own.
    `sessions` of others are in the database all the time."""
    ground.admin.execute("CHECKPOINT")
    before = ground.usage(dsn, sessions)
    with crew(peer, dsn, workers) as working, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET enable_seqscan = off")
        conn.execute("SET jit = off")
        begin = working.wait_for_start()
        memory = _wait(working, jobs, begin + limit)
        capped = working.done < jobs
        while not capped and conn.execute(left_sql or peer.info["left_sql"]).fetchone():
            time.sleep(LEFT_PAUSE)
            capped = time.time() > begin + 2 * limit
        took = time.time() - begin
        done, cpu = working.done, sum(process.cpu for process in working)
    curve = [(0.0, 0), *((at - begin, count) for at, count in working.curve())]
    return Drained(done / took, done, capped, memory, _costs(before, ground.usage(dsn, sessions), cpu, done), curve)


def _wait(working: Crew, jobs: int, deadline: float) -> float:
    """The most memory that a worker was seen to have, in MB."""
    most = looked_at = 0.0
    while working.look() < jobs and time.time() < deadline:
        if time.time() - looked_at > MEMORY_PAUSE:
            looked_at = time.time()
            most = max(most, *(process.memory for process in working))
    return max(most, *(process.memory for process in working))


def _costs(before: Usage, after: Usage, cpu: float, done: int) -> dict[str, float]:
    done = max(done, 1)
    costs = {
        "wal": (after.wal - before.wal) / done,
        "worker_cpu": 1e6 * cpu / done,
        "transactions": (after.transactions - before.transactions) / done,
    }
    if before.cpu is not None and after.cpu is not None:
        costs["server_cpu"] = 1e6 * (after.cpu - before.cpu) / done
    if before.statements is not None and after.statements is not None:
        costs["statements"] = (after.statements - before.statements) / done
    return costs


def burst(peer: Peer, dsn: str, jobs: int, *, workers: int, limit: float) -> float:
    """Jobs a second of idle workers from the first to the last of jobs that come at once: what a start of processes
    takes does not count."""
    with crew(peer, dsn, workers) as working:
        working.wait_for_start()
        time.sleep(SETTLED)
        _enqueue_at_once(peer, dsn, jobs)
        _wait(working, jobs, time.time() + limit)
    # No further: the one that told idle workers may come long after all the others.
    return rate_between(working.curve(), 1, jobs)


def _enqueue_at_once(peer: Peer, dsn: str, jobs: int) -> None:
    """In one transaction, where the peer can; and one job more, of which idle workers are told."""
    sql = peer.info.get("future_sql")
    if not sql:
        peer.call("bulk", dsn, jobs)
        return
    with psycopg.connect(dsn) as conn:
        if peer.info.get("pre_future_sql"):
            conn.execute(peer.info["pre_future_sql"])
        conn.execute((sql % jobs).replace("10 day", "0 day"))
    peer.call("one", dsn, 1)
