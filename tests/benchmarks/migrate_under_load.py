"""How long an upgrade holds up enqueues: `python -m tests.benchmarks.migrate_under_load [--jobs 1000000] [--url URL]`.

A made-up next revision that alters every table runs while four workers and four producers do, each a process of its
own. First with a transaction open that has used the tables, then without one: the upgrade tries again until it has
run. Prints the longest enqueue of each part, with its commit, and what the upgrade did.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sqlane_sa import Queue, Worker, migrations
from sqlane_sa.migrations import chain
from sqlane_sa.values.errors import SchemaBusyError
from tests.benchmarks.ground import own_database, own_server

PROCESSES = 4
PAUSE = 1.0
NEXT = "sqlane_9999"
REVISION = """
import sqlalchemy as sa
from sqlane_sa.migrations import lock, operations, record, target

revision, down_revision = "{next}", "{head}"
TABLES = ("sleepers", "waits", "mutexes", "payloads", "jobs")


def upgrade():
    op, at = operations(), target()
    lock(*TABLES)
    for table in TABLES:
        column = sa.Column("extra", sa.Integer(), nullable=False, server_default="0")
        op.add_column(at.prefix + table, column, schema=at.schema)
    if {index}:
        op.create_index(op.f(at.prefix + "jobs_by_extra"), at.prefix + "jobs", ["extra", "id"], schema=at.schema)
    record(revision)


def downgrade():
    op, at = operations(), target()
    lock(*TABLES)
    for table in TABLES:
        op.drop_column(at.prefix + table, "extra", schema=at.schema)
    record("{head}")
"""

FILL = """
WITH new AS (
    INSERT INTO sqlane_jobs (id, job_name)
    SELECT lpad(n::text, 26, '0'), 'n' FROM generate_series(1, {}) AS n RETURNING id
) INSERT INTO sqlane_payloads (id, payload) SELECT id, '{{"some": "payload"}}' FROM new"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--open", type=float, default=60.0, help="seconds that the long transaction stays open")
    parser.add_argument("--index", action="store_true", help="the revision also builds an index over the jobs")
    parser.add_argument("--url", help="a server whose user may create databases")
    options = parser.parse_args()
    with own_server(options.url) as url, own_database(url) as engine, ExitStack() as stack:
        queue = Queue()
        migrations.apply(engine, queue)
        with engine.begin() as conn:
            print(conn.exec_driver_sql("SELECT version()").scalar())
            conn.exec_driver_sql(FILL.format(options.jobs))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("VACUUM ANALYZE")
        print(f"{options.jobs:,} pending jobs, {PROCESSES} workers and {PROCESSES} producers", flush=True)
        load = stack.enter_context(Load(engine.url).running())
        load.report("before", 5.0)
        stack.enter_context(next_revision(options.index))
        with engine.connect() as holder:
            holder.exec_driver_sql("SELECT count(*) FROM sqlane_jobs WHERE false")
            attempts = try_until(engine, queue, time.monotonic() + options.open)
        load.report(f"{attempts} upgrades that gave up beside a transaction open for {options.open:g} s")
        begin = time.monotonic()
        attempts = try_until(engine, queue)
        took = time.monotonic() - begin
        load.report(f"the upgrade, done in {took:.2f} s at attempt {attempts}")
        load.report("after", 5.0)
        assert migrations.current(engine, queue) == NEXT


def try_until(engine: sa.Engine, queue: Queue, end: float | None = None) -> int:
    """Upgrade until it works, or, with `end`, until then; the number of attempts."""
    attempts = 0
    while end is None or time.monotonic() < end:
        attempts += 1
        try:
            migrations.apply(engine, queue)
        except SchemaBusyError:
            time.sleep(PAUSE)
        else:
            assert end is None, "the open transaction was no obstacle"
            break
    return attempts


@contextmanager
def next_revision(index: bool) -> Iterator[None]:
    """The package as it will be with one more revision, in this process alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "alembic"
        shutil.copytree(chain.folder(), folder)
        source = REVISION.format(next=NEXT, head=chain.head(), index=index)
        (folder / "versions" / f"{NEXT}.py").write_text(source)
        here, chain.folder = chain.folder, lambda: folder  # type: ignore[assignment]
        chain.revisions.cache_clear()
        try:
            yield
        finally:
            chain.folder = here
            chain.revisions.cache_clear()


class Load:
    """Processes that enqueue and work all the time."""

    def __init__(self, url: sa.URL) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._longest = [context.Value("d", 0.0) for _ in range(PROCESSES)]
        self._counts = [context.Value("q", 0) for _ in range(PROCESSES)]
        at = url.render_as_string(hide_password=False)
        self._processes = [context.Process(target=work, args=(at, self._stop)) for _ in range(PROCESSES)]
        for longest, count in zip(self._longest, self._counts, strict=True):
            self._processes.append(context.Process(target=produce, args=(at, self._stop, longest, count)))

    @contextmanager
    def running(self) -> Iterator[Load]:
        for process in self._processes:
            process.start()
        try:
            while not all(count.value for count in self._counts):
                time.sleep(0.1)
            yield self
        finally:
            self._stop.set()
            for process in self._processes:
                process.join()
        assert all(process.exitcode == 0 for process in self._processes)

    def report(self, part: str, seconds: float = 1.0) -> None:
        """The longest enqueue since the last report, with those that end within the next seconds."""
        time.sleep(seconds)
        longest = max(one.value for one in self._longest)
        print(
            f"  {part}: longest enqueue {longest:.2f} s, {sum(one.value for one in self._counts):,} so far", flush=True
        )
        for one in self._longest:
            one.value = 0.0


def produce(url: str, stop: Event, longest: Any, count: Any) -> None:
    engine = sa.create_engine(url)
    handle = Queue().define("n")
    while not stop.is_set():
        begin = time.perf_counter()
        with engine.begin() as conn:
            handle.enqueue(conn, {"some": "payload"})
        longest.value = max(longest.value, time.perf_counter() - begin)
        count.value += 1
        # Not as fast as it goes: the figure is about locks, not about a machine with too much to do.
        time.sleep(0.01)


def work(url: str, stop: Event) -> None:
    engine = sa.create_engine(url)
    queue = Queue()
    queue.job("n")(lambda payload: time.sleep(0.05))
    with Worker(engine, queue, concurrency=5):
        stop.wait()


if __name__ == "__main__":
    main()
