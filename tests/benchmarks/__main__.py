"""What one worker process does: `python -m tests.benchmarks [--jobs 20000] [--concurrency 20] [--url URL]`.

Without a URL a server of its own is started, with its default settings (fsync on). Read the figures as ratios within
one run: machines differ, and shared ones are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from sqlane_sa import Queue, Worker, migrations
from sqlane_sa.demo.server import Server

GAP = 0.02
PICKUPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--url", help="a server whose user may create databases")
    options = parser.parse_args()
    with own_server(options.url) as url, own_database(url) as engine:
        with engine.connect() as conn:
            print(conn.exec_driver_sql("SELECT version()").scalar())
        bench = Bench(engine, options.jobs, options.concurrency)
        print(f"{bench.jobs} no-op jobs, one worker process, concurrency={bench.concurrency}")
        for kind in ("def", "async def", "keyed", "transactional"):
            bench.drain(kind)
        bench.enqueue_one_by_one()
        bench.pick_up()


class Bench:
    """Each line is measured on the same database, after the jobs of the lines before it have completed."""

    def __init__(self, engine: sa.Engine, jobs: int, concurrency: int) -> None:
        self.engine = engine
        self.jobs = jobs
        self.concurrency = concurrency
        self.queue = Queue()
        self.started: list[float] = []
        self.handlers = {
            "def": self.queue.job("plain")(self._note),
            "async def": self.queue.job("async")(self._note_async),
            "keyed": self.queue.job("keyed", mutex_keys=lambda n: [f"key:{n}"])(self._note),
            "transactional": self.queue.job("transactional", transactional=True)(self._note),
        }
        migrations.apply(engine, self.queue)

    def _note(self, payload: int) -> None:
        self.started.append(time.time())

    async def _note_async(self, payload: int) -> None:
        self.started.append(time.time())

    def drain(self, kind: str) -> None:
        count = self.jobs // 10 if kind == "transactional" else self.jobs
        handle = self.handlers[kind]
        begin = time.perf_counter()
        with self.engine.begin() as conn:
            self.queue.enqueue_many(conn, (handle.new(n) for n in range(count)))
        bulk = count / (time.perf_counter() - begin)
        self.started.clear()
        begin = time.perf_counter()
        Worker(self.engine, self.queue, concurrency=self.concurrency).run_until_idle()
        rate = count / (time.perf_counter() - begin)
        assert len(self.started) == count, f"{len(self.started)} handlers ran for {count} jobs"
        print(f"  {kind:14} enqueue_many {bulk:9,.0f} jobs/s   start to idle {rate:9,.0f} jobs/s")

    def enqueue_one_by_one(self, count: int = 1000) -> None:
        handle = self.handlers["def"]
        begin = time.perf_counter()
        for n in range(count):
            with self.engine.begin() as conn:
                handle.enqueue(conn, n)
        print(f"  one transaction per enqueue {count / (time.perf_counter() - begin):,.0f} jobs/s")
        Worker(self.engine, self.queue, concurrency=self.concurrency).run_until_idle()

    def pick_up(self) -> None:
        """From the end of the enqueue's commit to the first line of the handler, on an idle worker."""
        self.started.clear()
        committed: list[float] = []
        with Worker(self.engine, self.queue, concurrency=self.concurrency):
            time.sleep(1)
            for n in range(PICKUPS):
                with self.engine.begin() as conn:
                    self.handlers["def"].enqueue(conn, n)
                committed.append(time.time())
                time.sleep(GAP)
            while len(self.started) < PICKUPS:
                time.sleep(GAP)
        waits = sorted(1000 * (start - commit) for commit, start in zip(committed, self.started, strict=True))
        p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
        print(f"  commit to handler start: mean {statistics.mean(waits):.2f} ms, p50 {p50:.2f} ms, p99 {p99:.2f} ms")


@contextmanager
def own_server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with Server() as server:
        yield server.url()


@contextmanager
def own_database(url: str) -> Iterator[sa.Engine]:
    name = f"sqlane_bench_{uuid.uuid4().hex[:8]}"
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.exec_driver_sql(f"CREATE DATABASE {name}")
    engine = sa.create_engine(admin.url.set(database=name))
    try:
        yield engine
    finally:
        engine.dispose()
        with admin.connect() as conn:
            conn.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


if __name__ == "__main__":
    main()
