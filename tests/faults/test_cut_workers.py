"""A whole worker through the proxy, while its connections are cut at one message after another."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from sqlane_sa import JobContext, Queue, Worker
from tests.faults.fleet import LONG
from tests.faults.load_counts import OVERLAPS
from tests.faults.load_worker import END_KEYED, START
from tests.faults.proxy import CUT_AFTER, CUT_BEFORE, Fault, Proxy
from tests.support import wait_until

CUTS = 40 if LONG else 20
JOBS = 10 * CUTS
KEYS = 2
SHORT = {"lease": 1.0, "sweep_interval": 0.2, "stall_delay": 0.1, "poll_interval": 0.1, "shutdown_timeout": 10.0}

# By what only this connection of the worker sends.
CONNECTIONS = {
    "loop": "picked AS MATERIALIZED",
    "heartbeat": "FOR NO KEY UPDATE SKIP LOCKED) AS j))\nRETURNING j.id",
    "listener": "LISTEN",
    "sweeper": "locked_until < statement_timestamp()\nORDER BY locked_until",
    "handlers": "INSERT INTO effects",
}

NOTES = """
CREATE TABLE runs (job_id text, lock_token text, mutex_key text, started_at timestamptz DEFAULT clock_timestamp(),
                   ended_at timestamptz, held bool);
CREATE TABLE effects (job_id text)"""


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


def define(queue: Queue, direct: sa.Engine) -> None:
    """A job with a key, whose handler notes its start and its end, and a transactional one with an effect."""

    def note(statement: sa.TextClause, ctx: JobContext, **more: Any) -> None:
        with direct.begin() as conn:
            conn.execute(statement, {"id": ctx.id, "token": ctx.lock_token} | more)

    @queue.job("keyed", mutex_keys=lambda payload: [f"key {payload % KEYS}"])
    def keyed(payload: int, ctx: JobContext) -> None:
        note(START, ctx, key=f"key {payload % KEYS}")
        time.sleep(0.05)
        note(END_KEYED, ctx)

    @queue.job("effect", transactional=True, max_attempts=CUTS + 1, backoff=lambda attempt: 0.05)
    def effect(payload: int, ctx: JobContext) -> None:
        note(START, ctx, key=None)
        ctx.connection.execute(sa.text("INSERT INTO effects VALUES (:job_id)"), {"job_id": ctx.id})


def cut_everywhere(proxy: Proxy, dice: random.Random, more_work: Callable[[], None]) -> dict[str, int]:
    """Each connection of the worker in turn, at a message of the next hundred; how often each."""
    done = dict.fromkeys(CONNECTIONS, 0)
    for n in range(CUTS):
        name = list(CONNECTIONS)[n % len(CONNECTIONS)]
        more_work()
        link = proxy.find(CONNECTIONS[name])
        fault = Fault(
            dice.choice(["client", "server"]),
            dice.randint(1, 3 if name == "listener" else 30),
            dice.choice([CUT_BEFORE, CUT_AFTER]),
            dice.choice([True, False]),
        )
        link.arm(fault)
        if name == "listener":
            more_work()
        try:
            wait_until(lambda link=link: link.fired or link.closed, timeout=1.0)  # type: ignore[misc]
        except AssertionError:
            link.cut()  # it is quiet: a cut at rest is one as well
        done[name] += 1
    return done


def test_a_worker_whose_connections_are_cut(
    proxy: Proxy, engine: sa.Engine, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """Every job ends once, no start is without a reason, no two of a key are at work at a time, and effects of
    transactional handlers are there once."""
    caplog.set_level(logging.CRITICAL, "sqlane_sa")
    define(queue, engine)
    with engine.begin() as conn:
        conn.exec_driver_sql(NOTES)
    ids: list[str] = []

    def more_work() -> None:
        with engine.begin() as conn:
            jobs = [queue.new(name, n) for n in range(JOBS // CUTS // 2) for name in ("keyed", "effect")]
            ids.extend(one.id for one in queue.enqueue_many(conn, jobs))

    through = sa.create_engine(proxy.url)
    with Worker(through, queue, **SHORT, concurrency=4):  # type: ignore[arg-type]
        done = cut_everywhere(proxy, random.Random(1), more_work)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            left = sa.text("SELECT count(*) FROM sqlane_jobs WHERE status <> 'completed'")
            wait_until(lambda: conn.scalar(left) == 0, timeout=60, message="the end of all jobs")
    through.dispose()
    assert min(done.values()) >= CUTS // len(CONNECTIONS)
    assert not caplog.records
    check(engine, ids)


def check(engine: sa.Engine, ids: list[str]) -> None:
    with engine.connect() as conn:
        jobs = {row.id: row for row in conn.execute(sa.text("SELECT id, attempts, stalls FROM sqlane_jobs"))}
        starts = dict(conn.execute(sa.text("SELECT job_id, count(*) FROM runs GROUP BY job_id")).all())  # type: ignore[arg-type]
        effects = dict(conn.execute(sa.text("SELECT job_id, count(*) FROM effects GROUP BY job_id")).all())  # type: ignore[arg-type]
        twice = conn.scalar(sa.text("SELECT count(*) - count(DISTINCT (job_id, lock_token)) FROM runs"))
        overlaps = conn.scalar(sa.text(OVERLAPS))
        held = conn.scalar(sa.text("SELECT count(*) FROM sqlane_mutexes WHERE held_until IS NULL"))
    assert set(jobs) == set(ids), "lost or phantom"
    unexplained = {id_: n for id_, n in starts.items() if n > jobs[id_].attempts + jobs[id_].stalls}
    assert not unexplained
    assert set(starts) == set(ids)
    assert (twice, overlaps, held) == (0, 0, 0)
    assert set(effects.values()) == {1} and len(effects) == len(ids) // 2
    print(f"{len(ids)} jobs, {sum(starts.values())} starts, {sum(job.stalls for job in jobs.values())} stalls")
