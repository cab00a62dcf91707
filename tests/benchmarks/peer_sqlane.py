"""sqlane_sa in the protocol of the comparison (`common.py`, beside which this runs): default settings.

KIND=def|async|keyed|transactional chooses the handler, CONC the concurrency.
"""

from __future__ import annotations

import os
from importlib.metadata import version

import common
import sqlalchemy as sa

from sqlane_sa import Queue, Worker, migrations

KIND = os.environ.get("KIND", "def")
CONCURRENCY = int(os.environ.get("CONC", "10"))

queue = Queue()


def tick(payload: int) -> None:
    common.tick(payload)


async def tick_async(payload: int) -> None:
    common.tick(payload)


noop = queue.job(
    "noop",
    mutex_keys=(lambda payload: f"key:{payload}") if KIND == "keyed" else None,
    transactional=KIND == "transactional",
)(tick_async if KIND == "async" else tick)


class Peer:
    name = f"sqlane_sa, {KIND}"
    version = version("sqlane_sa")
    settings = f"defaults, concurrency {CONCURRENCY}"
    left_sql = (
        "SELECT 1 FROM sqlane_jobs WHERE status IN ('pending', 'running') AND run_at < now() + interval '1 day' LIMIT 1"
    )
    future_sql = None
    sync = True
    dsn = ""

    def engine(self) -> sa.Engine:
        return sa.create_engine(self.dsn.replace("postgresql://", "postgresql+psycopg://"))

    def setup(self) -> None:
        migrations.apply(self.engine(), queue)

    def open(self) -> None:
        self.conn = self.engine().connect()

    def close(self) -> None:
        self.conn.close()

    def one(self, i: int) -> None:
        with self.conn.begin():
            noop.enqueue(self.conn, i)

    def bulk(self, first: int, n: int) -> None:
        with self.conn.begin():
            queue.enqueue_many(self.conn, (noop.new(first + i) for i in range(n)))

    def work(self) -> None:
        Worker(self.engine(), queue, concurrency=CONCURRENCY).run()


if __name__ == "__main__":
    common.main(Peer())
