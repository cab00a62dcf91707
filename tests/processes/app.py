"""A worker process of the tests: `python app.py URL OPTIONS_JSON`. Handlers write down each start and end."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from sqlane_sa import Discard, JobContext, Queue, Worker

queue = Queue()
engine: sa.Engine
worker: Worker

LEDGER = """
CREATE TABLE IF NOT EXISTS ledger (
    n bigint GENERATED ALWAYS AS IDENTITY, job_id text, lock_token text, attempt int, worker text, pid int, event text,
    at timestamptz DEFAULT clock_timestamp())"""


NOTE = sa.text("INSERT INTO ledger (job_id, lock_token, attempt, worker, pid, event) VALUES (:i, :t, :a, :w, :p, :e)")


def note(ctx: JobContext, event: str) -> None:
    facts = {"i": ctx.id, "t": ctx.lock_token, "a": ctx.attempt, "w": os.environ.get("WORKER", ""), "p": os.getpid()}
    with engine.begin() as conn:
        conn.execute(NOTE, facts | {"e": event})


@queue.job("quick", mutex_keys=lambda p: (p or {}).get("keys"))
def quick(payload: Any, ctx: JobContext) -> None:
    note(ctx, "start")
    note(ctx, "end")


@queue.job("sleep", mutex_keys=lambda p: p.get("keys"), failure_job="failed")
def sleep(payload: Any, ctx: JobContext) -> None:
    """Sleeps `seconds` in all, by default for ever."""
    note(ctx, "start")
    time.sleep(payload.get("seconds", 3600))
    note(ctx, "end")


def runs(ctx: JobContext) -> int:
    with engine.connect() as conn:
        count = sa.text("SELECT count(*) FROM ledger WHERE job_id = :i AND event = 'start'")
        return int(conn.execute(count, {"i": ctx.id}).scalar_one())


@queue.job("once")
def once(payload: Any, ctx: JobContext) -> None:
    """The first run sleeps, a later one ends at once."""
    note(ctx, "start")
    if runs(ctx) == 1:
        time.sleep(payload["seconds"])
    note(ctx, "end")


@queue.job("nap")
async def nap(payload: Any, ctx: JobContext) -> None:
    await asyncio.to_thread(note, ctx, "start")
    await asyncio.sleep(payload.get("seconds", 3600))
    await asyncio.to_thread(note, ctx, "end")


@queue.job("query")
async def query(payload: Any, ctx: JobContext) -> None:
    """Waits for the database, through the async driver given."""
    async_engine = create_async_engine(engine.url.set(drivername=f"postgresql+{payload['driver']}"))
    try:
        async with AsyncSession(async_engine) as session:
            await session.execute(sa.text("SELECT pg_sleep(60)"))
    finally:
        await async_engine.dispose()


@queue.job("block")
async def block(payload: Any, ctx: JobContext) -> None:
    """Blocks the event loop."""
    note(ctx, "start")
    time.sleep(payload["seconds"])
    note(ctx, "end")


@queue.job("hold_gil")
def hold_gil(payload: Any, ctx: JobContext) -> None:
    """The first run holds the interpreter, call after call in C; a later one ends at once."""
    note(ctx, "start")
    end = time.monotonic() + payload["seconds"]
    while runs(ctx) == 1 and time.monotonic() < end:
        sum(range(30_000_000))
    note(ctx, "end")


@queue.job("crash", max_stalls=2, failure_job="failed")
def crash(payload: Any, ctx: JobContext) -> None:
    note(ctx, "start")
    os._exit(137)


@queue.job("sleep_five", max_stalls=4)
def sleep_five(payload: Any, ctx: JobContext) -> None:
    note(ctx, "start")
    time.sleep(3600)


@queue.job("failed")
def failed(payload: Any, ctx: JobContext) -> None:
    note(ctx, "failed:" + payload["id"])


@queue.job("pool")
def pool(payload: Any, ctx: JobContext) -> None:
    """Keeps a connection of the application's pool while it sleeps."""
    with engine.connect() as conn:
        conn.exec_driver_sql("SELECT 1")
        threading.Event().wait(payload["seconds"])


@queue.job("patient", timeout=20.0)
def patient(payload: Any, ctx: JobContext) -> None:
    """With a timeout of many leases."""
    note(ctx, "start")
    time.sleep(payload["seconds"])
    note(ctx, "end")


@queue.job("overlap", max_attempts=2, backoff=lambda attempt: 3600, failure_job="failed")
def overlap(payload: Any, ctx: JobContext) -> None:
    """The first run raises late, a later one fails for good at once."""
    note(ctx, "start")
    if runs(ctx) > 1:
        raise Discard("the newer run's word")
    note(ctx, "the older run")
    time.sleep(payload["seconds"])
    note(ctx, "end")
    raise ValueError("the older run's word")


@queue.job("child")
def child(payload: Any, ctx: JobContext) -> None:
    """Waits for a program of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        note(ctx, "start")
        program.wait()
    note(ctx, f"ended:{program.returncode}")
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, "program")


@queue.job("stop")
def stop(payload: Any) -> None:
    worker.stop()


started = itertools.count(1)
WRITTEN = sa.text(
    "SELECT locked_until, (SELECT count(*) FROM sqlane_jobs WHERE status = 'completed') AS completed"
    " FROM sqlane_jobs WHERE id = :id"
)


def wait_for_writes(ctx: JobContext, jobs: int) -> None:
    """Until so many are completed, or the lease was renewed three times meanwhile."""
    leases = set()
    while len(leases) < 4:
        with engine.connect() as conn:
            row = conn.execute(WRITTEN, {"id": ctx.id}).one()
        if row.completed >= jobs:
            return
        leases.add(row.locked_until)
        time.sleep(0.01)


@queue.job("fiftieth")
def fiftieth(payload: Any, ctx: JobContext) -> None:
    """Just after the 50th has returned, the process is killed; unless it was killed before. The 50th leaves the worker
    the time to write what had ended before, and those behind it stay in their slots."""
    note(ctx, "start")
    number = 0 if "last" in os.environ["WORKER"] else next(started)
    if number > 50:
        threading.Event().wait()
    if number == 50:
        wait_for_writes(ctx, 49)
    note(ctx, "end")
    if number == 50:
        threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGKILL)).start()


if __name__ == "__main__":
    logging.basicConfig(level=os.environ.get("LEVEL", "WARNING"))
    url, options = sys.argv[1], json.loads(sys.argv[2])
    pool_options = options.pop("pool", {})
    engine = sa.create_engine(url, **pool_options)
    worker = Worker(engine, queue, **options)
    worker.run()
