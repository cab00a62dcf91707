"""A process under libfaketime: `python clocks.py work URL OPTIONS_JSON`, or `python clocks.py enqueue URL`."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import sqlalchemy as sa

from sqlane_sa import JobContext, Queue, Retry, Worker
from tests.processes import app

DELAY = 4.0
"""Seconds, of a delayed job and of a retry."""
RETENTION = 3600.0
MANY, FEW = 40, 5
"""Jobs of each kind; few of what takes seconds."""

queue = Queue()


@queue.job("quick", completed_retention=RETENTION)
def quick(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, f"clock:{time.time()}")
    app.note(ctx, "start")


@queue.job("retries", completed_retention=RETENTION)
def retries(payload: Any, ctx: JobContext) -> None:
    app.note(ctx, "start")
    if ctx.attempt == 1:
        raise Retry(delay=DELAY)


@queue.job("slow", completed_retention=RETENTION)
def slow(payload: Any, ctx: JobContext) -> None:
    """Until after a renewal. Not by time.sleep, which libfaketime breaks where it leaves the monotonic clock alone."""
    app.note(ctx, "start")
    threading.Event().wait(payload["seconds"])
    app.note(ctx, "end")


def main(task: str, url: str, options: str = "{}") -> None:
    app.engine = sa.create_engine(url)
    if task == "work":
        Worker(app.engine, queue, **json.loads(options)).run()
        return
    with app.engine.begin() as conn:
        ids = {
            "now": [queue.enqueue(conn, "quick").id for _ in range(MANY)],
            "delayed": [queue.enqueue(conn, "quick", delay=DELAY).id for _ in range(MANY)],
            "retries": [queue.enqueue(conn, "retries").id for _ in range(MANY)],
            "slow": [queue.enqueue(conn, "slow", {"seconds": 5.0}).id for _ in range(FEW)],
        }
    print(json.dumps({"ids": ids, "clock": time.time()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
