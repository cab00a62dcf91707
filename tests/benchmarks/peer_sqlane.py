"""sqlane_sa in the protocol of the comparison: default settings. Run as a script, beside its `common.py`.

In the environment: KIND=def|async|keyed|transactional is the kind of handler, CONC its concurrency, KEYS over how many
keys the keyed jobs spread (0: a key of its own each), WORKERS how many workers the process has, WAKEUPS=0 turns them
off, COPY=1 is `enqueue_many(copy=True)`, ISOLATION the level of the application's engine. With BIG_MS=1 (milliseconds)
there are two names: "noop", which takes that long and is not timed, and "small", which is what `one` and `trickle`
enqueue.
"""

from __future__ import annotations

import os
import threading
import time
from importlib.metadata import version
from typing import Any

import common
import psycopg  # noqa: F401  # loaded before the clock starts, as by the other peers
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, migrations

KIND = os.environ.get("KIND", "def")
CONCURRENCY = int(os.environ.get("CONC", "10"))
KEYS = int(os.environ.get("KEYS", "0"))
WORKERS = int(os.environ.get("WORKERS", "1"))
WAKEUPS = os.environ.get("WAKEUPS", "1") == "1"
COPY: dict[str, Any] = {"copy": True} if os.environ.get("COPY") else {}
ISOLATION: dict[str, Any] = {"isolation_level": level} if (level := os.environ.get("ISOLATION")) else {}
BIG_MS = float(os.environ.get("BIG_MS", "0"))

queue = Queue()


def tick(payload: int) -> None:
    common.tick(payload)


async def tick_async(payload: int) -> None:
    common.tick(payload)


def take_time(payload: int) -> None:
    time.sleep(BIG_MS / 1000)


def key(payload: int) -> list[str]:
    return [f"key:{payload % KEYS if KEYS else payload}"]


noop = queue.job("noop", mutex_keys=key if KIND == "keyed" else None, transactional=KIND == "transactional")(
    take_time if BIG_MS else tick_async if KIND == "async" else tick
)
single = queue.job("small")(tick) if BIG_MS else noop

# Each half by its index, whatever the statistics say: the driver asks every 10 ms.
LEFT = """
(SELECT 1 FROM sqlane_jobs WHERE status = 'running' LIMIT 1) UNION ALL
(SELECT 1 FROM sqlane_jobs WHERE status = 'pending' AND mutex_keys IS {} NULL AND job_name = 'noop' AND priority = 0
 AND run_at < now() + interval '1 day' LIMIT 1)"""


class Peer:
    name = f"sqlane_sa, {KIND}"
    version = version("sqlane_sa")
    settings = f"defaults, concurrency {CONCURRENCY}"
    left_sql = LEFT.format("NOT" if KIND == "keyed" else "")
    future_sql = None
    sync = True
    dsn = ""

    def engine(self) -> sa.Engine:
        return sa.create_engine(
            self.dsn.replace("postgresql://", "postgresql+psycopg://"), pool_size=WORKERS, **ISOLATION
        )

    def setup(self) -> None:
        migrations.apply(self.engine(), queue)

    def open(self) -> None:
        self.conn = self.engine().connect()

    def close(self) -> None:
        self.conn.close()

    def one(self, i: int) -> None:
        with self.conn.begin():
            single.enqueue(self.conn, i)

    def bulk(self, first: int, n: int) -> None:
        with self.conn.begin():
            queue.enqueue_many(self.conn, (noop.new(first + i) for i in range(n)), **COPY)

    def work(self) -> None:
        engine = self.engine()
        workers = [Worker(engine, queue, concurrency=CONCURRENCY, wakeups=WAKEUPS) for _ in range(WORKERS)]
        for worker in workers[1:]:
            threading.Thread(target=worker.start).start()
        workers[0].run()


if __name__ == "__main__":
    common.main(Peer())
