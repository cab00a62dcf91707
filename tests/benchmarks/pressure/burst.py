"""Bursts onto idle workers: many jobs in one transaction, and many transactions at once."""

from __future__ import annotations

import argparse
import threading
import time

import sqlalchemy as sa

from sqlane_sa.demo.server import Server
from tests.benchmarks.pressure.figures import percentile, row
from tests.benchmarks.pressure.load import TICK, Crew, Run, definitions, enqueue, lost_and_repeated
from tests.benchmarks.pressure.server import database

JOBS = 50_000
TRANSACTIONS = 200
IDLE_WORKERS = 2


def run(options: argparse.Namespace) -> None:
    with Server(settings={"max_connections": TRANSACTIONS + 50}) as server, database(server) as (url, engine):
        one_transaction(url, engine)
        at_once(url, engine)


def idle_crew(url: str) -> Crew:
    return Crew(url, processes=IDLE_WORKERS, concurrency=10, names=["plain"])


def wait_until_asleep(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        while conn.exec_driver_sql("SELECT count(*) FROM sqlane_sleepers").scalar_one() < IDLE_WORKERS:
            time.sleep(TICK)


def one_transaction(url: str, engine: sa.Engine) -> None:
    crew = idle_crew(url)
    with crew.working():
        wait_until_asleep(engine)
        begin = time.time()
        committed = enqueue(engine, "plain", JOBS)
        crew.wait(JOBS)
    first, last = (find(one.at for one in crew.runs) - committed for find in (min, max))
    found = (
        f"enqueued in {committed - begin:.1f} s; first pick-up {1000 * first:.0f} ms after the commit, the last after "
        f"{last:.1f} s: {JOBS / last:,.0f} jobs/s, {(committed - begin) / last:.2f} x the rate of the enqueue"
    )
    row("burst", f"{JOBS:,} jobs in one transaction", JOBS, *lost_and_repeated(crew.runs, JOBS), found)


def at_once(url: str, engine: sa.Engine) -> None:
    crew = idle_crew(url)
    with crew.working():
        enqueue(engine, "plain", 1)
        crew.wait(1)
        wait_until_asleep(engine)
        took = commit_together(url)
        crew.wait(1 + TRANSACTIONS)
    found = described([one for one in crew.runs if one.number > 0], took)
    done = f"{TRANSACTIONS} transactions of one job, which commit at once"
    row("burst", done, 1 + TRANSACTIONS, *lost_and_repeated(crew.runs, 1 + TRANSACTIONS), found)


def described(runs: list[Run], took: float) -> str:
    waits = [one.waited for one in runs]
    return (
        f"all committed in {1000 * took:.0f} ms; pick-up from the call of the commit p50 "
        f"{1000 * percentile(waits, 0.5):.0f} ms, p99 {1000 * percentile(waits, 0.99):.0f} ms, "
        f"last {max(waits) / took:.2f} x the time of the commits"
    )


def commit_together(url: str) -> float:
    """Enqueue in as many transactions, and commit them at once; the seconds until all have."""
    engine = sa.create_engine(url, pool_size=TRANSACTIONS)
    gate = threading.Barrier(TRANSACTIONS + 1)
    queue = definitions()

    def enqueue_one(number: int) -> None:
        with engine.begin() as conn:
            conn.exec_driver_sql("SELECT 1")
            gate.wait()
            queue.enqueue(conn, "plain", {"n": number, "at": time.time()})

    threads = [threading.Thread(target=enqueue_one, args=(number,)) for number in range(1, TRANSACTIONS + 1)]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.monotonic()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin
    engine.dispose()
    return took
