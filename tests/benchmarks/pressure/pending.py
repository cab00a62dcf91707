"""Ten million pending jobs: what a claim, a probe and the worker's memory cost beside an empty backlog."""

from __future__ import annotations

import argparse
import shutil
import time
from typing import Any, NamedTuple

import sqlalchemy as sa

from sqlane_sa import store
from sqlane_sa.demo.server import Server
from tests.benchmarks.pressure import plans
from tests.benchmarks.pressure.figures import memory_mb, note, row
from tests.benchmarks.pressure.load import Crew, definitions, enqueue, lost_and_repeated
from tests.benchmarks.pressure.server import database

BYTES_A_ROW = 1_500
"""Of disk, with the indexes, the payload and the log."""
BATCH = 500_000
KEYED_SHARE = 10
CONCURRENCY = 20

# The payloads' numbers are below zero, and so apart from those of jobs enqueued by a producer. Every other plain job is
# due tomorrow; the keyed ones have 100 jobs a key.
JOBS = """
INSERT INTO sqlane_jobs (id, job_name, run_at, mutex_keys, completed_retention_ms)
SELECT lpad(n::text, 26, '0'), CASE WHEN n % {share} = 0 THEN 'keyed' ELSE 'plain' END,
       date_trunc('milliseconds', statement_timestamp())
       + CASE WHEN n % {share} <> 0 AND n % 2 = 0 THEN interval '1 day' ELSE interval '0' END,
       CASE WHEN n % {share} = 0 THEN ARRAY['backlog:' || n / {share} % {keys}] END, 0
FROM generate_series({first}, {last}) AS n"""
PAYLOADS = """
INSERT INTO sqlane_payloads (id, payload)
SELECT lpad(n::text, 26, '0'), json_build_object('n', -n, 'at', extract(epoch FROM statement_timestamp()))
FROM generate_series({first}, {last}) AS n"""
WAITS = """
INSERT INTO sqlane_waits (mutex_key, run_at, job_id)
SELECT mutex_keys[1], run_at, id FROM sqlane_jobs
WHERE mutex_keys IS NOT NULL AND id BETWEEN lpad('{first}', 26, '0') AND lpad('{last}', 26, '0')"""


class Cost(NamedTuple):
    rate: float
    memory: float
    probe_buffers: int
    claim_buffers: int
    stats_seconds: float


def run(options: argparse.Namespace) -> None:
    with (
        Server(settings={"max_wal_size": "4GB", "shared_buffers": "512MB"}) as server,
        database(server) as (url, engine),
    ):
        check_room(server.log, options.rows)
        costs = {}
        for name in ("plain", "keyed"):
            enqueue(engine, name, options.jobs)
            costs[name] = measure(url, engine, name, options.jobs, own=True)
        fill(engine, options.rows)
        for name in ("plain", "keyed"):
            compare(name, options, costs[name], measure(url, engine, name, options.jobs, own=False))


def compare(name: str, options: argparse.Namespace, empty: Cost, full: Cost) -> None:
    found = (
        f"rate {full.rate / empty.rate:.2f} x that without a backlog ({full.rate:,.0f} and {empty.rate:,.0f} jobs/s); "
        f"memory of the worker {full.memory / empty.memory:.2f} x ({full.memory:.0f} MB); "
        f"probe {full.probe_buffers} and {empty.probe_buffers} buffers, claim of 20 plain {full.claim_buffers} and "
        f"{empty.claim_buffers}; stats {full.stats_seconds:.2f} s"
    )
    done = f"{options.jobs:,} {name} jobs off a backlog of {options.rows:,}"
    row("pending", done, options.jobs, 0, 0, found)


def check_room(at: Any, rows: int) -> None:
    free = shutil.disk_usage(at.parent).free
    if free < 2 * rows * BYTES_A_ROW:
        raise SystemExit(
            f"{rows:,} jobs need {2 * rows * BYTES_A_ROW >> 30} GB with their log; {free >> 30} GB are free"
        )


def fill(engine: sa.Engine, rows: int) -> None:
    begin = time.monotonic()
    for first in range(1, rows + 1, BATCH):
        last = min(first + BATCH - 1, rows)
        values = {"first": first, "last": last, "share": KEYED_SHARE, "keys": max(1, rows // KEYED_SHARE // 100)}
        with engine.begin() as conn:
            conn.exec_driver_sql("SET LOCAL synchronous_commit = off")
            for statement in (JOBS, PAYLOADS, WAITS):
                conn.execute(sa.text(statement.format(**values)))
        if last % (4 * BATCH) == 0:
            note(f"{last:,} rows after {time.monotonic() - begin:.0f} s")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("VACUUM (ANALYZE) sqlane_jobs, sqlane_payloads, sqlane_waits")
        conn.exec_driver_sql("CHECKPOINT")
    note(f"{rows:,} rows inserted, vacuumed and analysed in {time.monotonic() - begin:.0f} s")


def measure(url: str, engine: sa.Engine, name: str, jobs: int, *, own: bool) -> Cost:
    """`own`: the jobs are this part's, and all of them are waited for."""
    probe, claim = plans.probe(engine), plans.claim(engine)
    before = time.monotonic()
    with engine.connect() as conn:
        store.stats(conn, definitions().tables)
    stats_seconds = time.monotonic() - before
    crew = Crew(url, processes=1, concurrency=CONCURRENCY, names=[name])
    with crew.working():
        crew.wait(jobs)
        memory = memory_mb(crew.pids[0])
    times = sorted(one.at for one in crew.runs)[:jobs]
    if own:
        lost, repeated = lost_and_repeated(crew.runs, jobs)
        assert (lost, repeated) == (0, 0), f"{lost} lost and {repeated} repeated"
    else:
        check_backlog(engine, name, {one.number for one in crew.runs}, len(crew.runs))
    return Cost(jobs / (times[-1] - times[0]), memory, probe, claim, stats_seconds)


def check_backlog(engine: sa.Engine, name: str, numbers: set[int], runs: int) -> None:
    """Each job is run and gone, or pending: none in between."""
    assert len(numbers) == runs, f"{runs - len(numbers)} jobs ran twice"
    with engine.connect() as conn:
        ids = [f"{-n:026}" for n in numbers]
        left = conn.execute(sa.text("SELECT count(*) FROM sqlane_jobs WHERE id = ANY(:ids)"), {"ids": ids}).scalar()
        running = conn.exec_driver_sql("SELECT count(*) FROM sqlane_jobs WHERE status = 'running'").scalar()
    assert (left, running) == (0, 0), f"{left} of the {name} jobs that ran are still there, {running} running"
