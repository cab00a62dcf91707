"""The worker of a chaos run: `python -m tests.faults.workload URL LEDGER_URL NAME OPTIONS_JSON [BUG]`.

Several kinds of job, each of which leaves in the ledger what it did. Handlers are light: the run is about the queue.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
import zlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sqlane_sa import Backoff, Discard, JobContext, Queue, Retry, Snooze, Worker
from tests.faults.ledger import Ledger

Payload = dict[str, Any]

queue = Queue()
ledger: Ledger
SOON = Backoff(base=0.2, factor=2.0, maximum=4.0)
RETENTION = 30 * 86400
KEPT: Any = {"completed_retention": RETENTION, "failed_retention": RETENTION, "backoff": SOON, "failure_job": "react"}
PR_SET_PDEATHSIG = 1


def keys(payload: Any) -> Any:
    return payload["keys"]


def chance(ctx: JobContext) -> float:
    """From 0 to 1, another one with each claim."""
    return zlib.crc32(f"{ctx.id}{ctx.lock_token}".encode()) / 2**32


@queue.job("plain", **KEPT)
def plain(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")


@queue.job("async", **KEPT)
async def coroutine(payload: Payload, ctx: JobContext) -> None:
    await asyncio.to_thread(ledger.note, ctx, "start")
    await asyncio.sleep(0.005)


@queue.job("keyed", mutex_keys=keys, **KEPT)
def keyed(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    time.sleep(payload.get("seconds", 0.0))
    if chance(ctx) < 0.02:
        ledger.note(ctx, "end")
        raise Retry(delay=0.3)
    ledger.note(ctx, "end")


@queue.job("effect", transactional=True, **KEPT)
def effect(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    ctx.connection.execute(sa.text("INSERT INTO effects (job_id) VALUES (:id)"), {"id": ctx.id})


@queue.job("account", transactional=True, mutex_keys=keys, **KEPT)
def account(payload: Payload, ctx: JobContext) -> None:
    """Reads, adds and writes back: it is the key that keeps another one from coming between."""
    ledger.note(ctx, "start")
    name = payload["keys"][0]
    balance = sa.text("SELECT balance FROM accounts WHERE account = :name")
    before = ctx.connection.execute(balance, {"name": name}).scalar_one_or_none()
    if before is None:
        ctx.connection.execute(sa.text("INSERT INTO accounts VALUES (:name, 1)"), {"name": name})
    else:
        written = sa.text("UPDATE accounts SET balance = :balance WHERE account = :name")
        ctx.connection.execute(written, {"name": name, "balance": before + 1})
    entry = sa.text("INSERT INTO effects (job_id, account) VALUES (:id, :name)")
    ctx.connection.execute(entry, {"id": ctx.id, "name": name})
    ledger.note(ctx, "end")


@queue.job("parent", transactional=True, **KEPT)
def parent(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    child = ctx.enqueue("plain", {})
    ctx.connection.execute(
        sa.text("INSERT INTO children (parent_id, child_id) VALUES (:parent, :child)"),
        {"parent": ctx.id, "child": child.id},
    )


@queue.job("flaky", max_attempts=6, **KEPT)
def flaky(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    if ctx.attempt <= payload["failures"]:
        raise RuntimeError("as the payload says")


@queue.job("snooze", **KEPT)
def snooze(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    if chance(ctx) < 0.5:
        raise Snooze(0.2)


@queue.job("doomed", max_attempts=2, mutex_keys=keys, **KEPT)
def doomed(payload: Payload, ctx: JobContext) -> None:
    """Fails for good: at once, or with its last attempt."""
    ledger.note(ctx, "start")
    ledger.note(ctx, "end")
    if payload["at_once"]:
        raise Discard("as the payload says")
    raise RuntimeError("as the payload says")


@queue.job("overdue", timeout=0.3, **KEPT)
def overdue(payload: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    if ctx.attempt == 1:
        ctx.cancelled.wait(2)


@queue.job("overdue_async", timeout=0.3, **KEPT)
async def overdue_async(payload: Payload, ctx: JobContext) -> None:
    await asyncio.to_thread(ledger.note, ctx, "start")
    if ctx.attempt == 1:
        await asyncio.sleep(2)


@queue.job("long", mutex_keys=keys, **KEPT)
def long(payload: Payload, ctx: JobContext) -> None:
    """Longer than a lease: lives on renewals."""
    ledger.note(ctx, "start")
    ctx.cancelled.wait(payload["seconds"])
    ledger.note(ctx, "end")


@queue.job("react", transactional=True, **KEPT | {"failure_job": None, "max_attempts": 20, "max_stalls": 20})
def react(failed: Payload, ctx: JobContext) -> None:
    ledger.note(ctx, "start")
    ctx.connection.execute(
        sa.text("INSERT INTO reactions (failed_id, job_id) VALUES (:failed, :id)"),
        {"failed": failed["id"], "id": ctx.id},
    )


def engine_as(url: str, name: str, **options: Any) -> sa.Engine:
    """The triggers of the ledger know by the application's name who writes."""
    return sa.create_engine(url, connect_args={"application_name": name, "connect_timeout": 5}, **options)


def work(worker: Worker) -> None:
    """As under a supervisor that starts it again until the database is there."""
    while True:
        try:
            worker.run()
            return
        except DBAPIError as error:
            logging.warning("not started: %s", str(error).partition("\n")[0])
            time.sleep(0.3)


def main(url: str, ledger_url: str, name: str, options: dict[str, Any], bug: str | None) -> None:
    global ledger
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            sys.exit("the run has ended")
    if bug is not None:
        from tests.faults.seeded import seed

        seed(bug, options)
    notes = engine_as(ledger_url, name, isolation_level="AUTOCOMMIT", pool_size=20, pool_pre_ping=False)
    ledger = Ledger(notes, name)
    work(Worker(engine_as(url, name), queue, worker_id=name, **options))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), *(sys.argv[5:] or [None]))
