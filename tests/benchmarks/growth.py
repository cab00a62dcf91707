"""Whether a worker grows: `python -m tests.benchmarks.growth [--jobs 300000] [--url URL]`.

One worker process, half of whose jobs fail with large frames, messages and chains of causes. Its memory is sampled each
10,000 jobs, its threads, files, and what its sessions hold, several times a second. Exits 1 when the memory at the end
is a tenth above that after a fifth of the jobs, or when anything else grows, stays open or is lost.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from sqlane_sa import Queue, Worker, migrations
from sqlane_sa.values.failure import MAX_MESSAGE_CHARS
from tests.benchmarks.failing import CHARACTERS, KINDS, MAX_ERROR_BYTES, fail, long_message, message
from tests.benchmarks.ground import own_database, own_server
from tests.benchmarks.pressure.figures import count, memory_mb
from tests.benchmarks.pressure.load import beside, end

SAMPLES = 30
CHUNK = 1_000
AHEAD = 2_000
CONCURRENCY = 10
MAX_GROWTH = 1.1
RETENTION = 60

WORKER = "sqlane growth"
"""The application name of the worker's sessions: the producer's are no concern."""
IDLE = f"""
SELECT pid, round(extract(epoch FROM clock_timestamp() - state_change), 1) AS seconds, left(query, 100) AS query
FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{WORKER}'
AND state LIKE 'idle in transaction%%' AND clock_timestamp() - state_change > interval '1 s'"""
ADVISORY = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
ERRORS = """
SELECT CAST(last_error AS text) AS error FROM sqlane_jobs
WHERE job_name = 'failing' AND status = 'failed' ORDER BY id DESC LIMIT 200"""

TRANSACTIONAL_SHARE = 11
"""One job in so many has a transaction of its own, which costs a round trip or two; another is `async def`."""


class Sample(NamedTuple):
    done: int
    memory: float
    threads: int
    files: int


class Held(NamedTuple):
    """What was found held, in all looks of a run."""

    looks: int
    idle: int
    advisory: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=300_000)
    parser.add_argument("--url", help="a server whose user may create databases")
    options = parser.parse_args()
    with own_server(options.url) as url, own_database(url) as engine:
        migrations.apply(engine, definitions())
        child = Child(engine.url)
        looks: list[tuple[int, int]] = []
        try:
            child.start()
            with beside(watch(engine, looks), feed(engine, options.jobs, child)):
                samples, largest = follow(engine, child, options.jobs)
            child.stop()
        finally:
            child.end()
        held = Held(len(looks), sum(idle for idle, _ in looks), sum(locks for _, locks in looks))
        raise SystemExit(verdict(engine, samples, largest, held, options.jobs, child))


class Child:
    def __init__(self, url: sa.URL) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._stop, self.done, self.failing = spawn.Event(), spawn.Value("q", 0), spawn.Value("q", 0)
        arguments = (url.render_as_string(hide_password=False), self._stop, self.done, self.failing)
        self._process = spawn.Process(target=work, args=arguments)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._stop.set()
        self._process.join()
        assert self._process.exitcode == 0

    def end(self) -> None:
        self._stop.set()
        end([self._process])

    def sample(self) -> Sample:
        threads, files = (len(list(Path(f"/proc/{self.pid}/{what}").iterdir())) for what in ("task", "fd"))
        return Sample(self.done.value, memory_mb(self.pid), threads, files)


def definitions(done: Any = None, failing: Any = None) -> Queue:
    """The queue, for those that only enqueue too; the handlers count their calls."""
    queue = Queue()

    def note(counter: Any) -> None:
        with counter.get_lock():
            counter.value += 1

    def fine(n: int) -> None:
        note(done)

    def failing_job(n: int) -> None:
        note(done)
        note(failing)
        fail(n)

    async def failing_async(n: int) -> None:
        failing_job(n)

    # A timeout that none of them reaches: the timer, too, has to forget them.
    ends: Any = {"max_attempts": 1, "timeout": 600, "completed_retention": RETENTION, "failed_retention": RETENTION}
    for name, function in (("fine", fine), ("failing", failing_job)):
        queue.job(name, **ends)(function)
        queue.job(f"{name}, transactional", transactional=True, **ends)(function)
    queue.job("failing, async", **ends)(failing_async)
    return queue


def name_of(n: int) -> str:
    """Pairs of one that fails and one that does not, so that each kind of failure comes in turn."""
    kind = "failing" if n % 2 else "fine"
    if n // 2 % TRANSACTIONAL_SHARE == 0:
        return f"{kind}, transactional"
    return "failing, async" if n % 2 and n // 2 % TRANSACTIONAL_SHARE == 1 else kind


def work(url: str, stop: Event, done: Any, failing: Any) -> None:
    logging.basicConfig(level=logging.WARNING, format="  worker: %(message)s")
    logging.getLogger("sqlane_sa.worker").addFilter(lambda record: "failed for good, attempt" not in str(record.msg))
    engine = sa.create_engine(url, connect_args={"application_name": WORKER})
    with Worker(engine, definitions(done, failing), concurrency=CONCURRENCY):
        stop.wait()


def feed(engine: sa.Engine, jobs: int, child: Child) -> Callable[[threading.Event], None]:
    """Enqueue, but not far ahead: what is due is no part of what is measured."""
    queue = definitions()

    def loop(stop: threading.Event) -> None:
        for first in range(0, jobs, CHUNK):
            while first - child.done.value > AHEAD and not stop.is_set():
                time.sleep(0.01)
            numbers = range(first, min(first + CHUNK, jobs))
            with engine.begin() as conn:
                queue.enqueue_many(conn, [queue.new(name_of(n), n // 2) for n in numbers])

    return loop


def watch(engine: sa.Engine, looks: list[tuple[int, int]]) -> Callable[[threading.Event], None]:
    def loop(stop: threading.Event) -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            while not stop.wait(0.2):
                idle = conn.exec_driver_sql(IDLE).all()
                for row in idle:
                    print(f"  idle in a transaction for {row.seconds} s: {row.pid}, {row.query}", flush=True)
                looks.append((len(idle), conn.exec_driver_sql(ADVISORY).scalar_one()))

    return loop


def follow(engine: sa.Engine, child: Child, jobs: int) -> tuple[list[Sample], int]:
    """Samples at equal steps, and the bytes of the largest `last_error` seen."""
    samples: list[Sample] = []
    largest = 0
    while len(samples) < SAMPLES:
        assert child.alive, "the worker's process ended"
        if child.done.value >= jobs * (len(samples) + 1) // SAMPLES:
            samples.append(child.sample())
            largest = max(largest, check_errors(engine))
            print("  {:>9,} jobs: {:.0f} MB, {} threads, {} files".format(*samples[-1]), flush=True)
        time.sleep(0.01)
    return samples, largest


def check_errors(engine: sa.Engine) -> int:
    """The last errors are JSON, of bounded size, and cut between characters; the bytes of the largest."""
    with engine.connect() as conn:
        errors = [row.error for row in conn.exec_driver_sql(ERRORS)]
    for text in errors:
        check_error(text)
    return max((len(text.encode()) for text in errors), default=0)


def check_error(text: str) -> None:
    assert len(text.encode()) <= MAX_ERROR_BYTES, f"{len(text.encode()):,} bytes"
    error = json.loads(text)
    assert set(error) == {"type", "message", "traceback", "attempt"}
    if CHARACTERS in error["message"]:
        start = error["message"].removesuffix("...").partition("(")[0].rstrip()
        n = start.partition(":")[0]
        if n.isdigit() and int(n) % len(KINDS) == KINDS.index(long_message):
            assert error["message"] == message(int(n))[: MAX_MESSAGE_CHARS - 3] + "...", error["message"][-20:]


def verdict(engine: sa.Engine, samples: list[Sample], largest: int, held: Held, jobs: int, child: Child) -> int:
    """0 when nothing grew, was held or was lost."""
    early, last = samples[SAMPLES // 5 - 1], samples[-1]
    files = [min(sample.files for sample in samples[start:][: SAMPLES // 5]) for start in (SAMPLES // 5, -SAMPLES // 5)]
    growth = last.memory / early.memory
    left = count(engine, "SELECT count(*) FROM sqlane_jobs WHERE status NOT IN ('completed', 'failed')")
    checks = {
        f"memory at the end {growth:.3f} x that after a fifth ({last.memory:.0f} and {early.memory:.0f} MB)": growth
        < MAX_GROWTH,
        f"threads {early.threads} and {last.threads}": last.threads <= early.threads,
        # The fewest: a call to the database has one more while it lasts.
        f"files {files[0]} and {files[1]}": files[1] <= files[0] + 2,
        f"largest last_error {largest:,} bytes of at most {MAX_ERROR_BYTES:,}": 0 < largest <= MAX_ERROR_BYTES,
        f"{held.idle} sessions idle in a transaction over 1 s, {held.looks:,} looks": held.idle == 0 < held.looks,
        f"{held.advisory} advisory locks": held.advisory == 0,
        f"{child.done.value:,} of {jobs:,} jobs ran, {child.failing.value:,} failed, {left} are left": (
            child.done.value == jobs and left == 0
        ),
    }
    for said, fine in checks.items():
        print(f"{'ok  ' if fine else 'BAD '} {said}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    main()
