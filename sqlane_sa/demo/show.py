"""The demo: a shop whose orders are placed while two workers run their jobs, and the queue's promises measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Engine, func, select

from sqlane_sa.demo import interrupts
from sqlane_sa.demo.crew import Crew
from sqlane_sa.demo.promises import Verdict, verify
from sqlane_sa.demo.schema import own_schema
from sqlane_sa.demo.screen import Progress, Screen, new_screen

WORKERS = 2
ARGUMENTS = ("sqlane_sa.demo.app:queue", "--concurrency", "10", "--log-level", "warning")
LOOK_INTERVAL = 0.1
PATIENCE = 60.0
"""Seconds without any job ending, after which those left count as lost."""


class Outcome(NamedTuple):
    """`schema` is where the tables are, or were."""

    kept_all: bool
    schema: str


def run(engine: Engine, orders: int, *, keep: bool) -> Outcome:
    """Run the demo on the engine's database, in a schema of its own.

    The schema is removed again; with `keep`, only when the demo does not come to its end.

    Raises `DemoError` when a worker cannot go on.
    """
    screen = new_screen()
    try:
        with own_schema(engine, keep=keep) as schema:
            _set_up(engine, schema, screen)
            return Outcome(_play(engine, orders, schema, screen), schema)
    finally:
        screen.close()


def _set_up(engine: Engine, schema: str, screen: Screen) -> None:
    # Read by the application when it is imported, in this process and in the workers.
    os.environ["SQLANE_DEMO_SCHEMA"] = schema
    os.environ["SQLANE_DATABASE_URL"] = engine.url.render_as_string(hide_password=False)
    from sqlane_sa import migrations
    from sqlane_sa.demo import app
    from sqlane_sa.demo.orders import open_shop

    migrations.apply(engine, app.queue)
    for metadata in (app.Base.metadata, app.ledger.metadata):
        metadata.create_all(engine)
    open_shop()
    screen.say(f"schema {schema}: the tables of the queue, and those of a small shop")


def _play(engine: Engine, orders: int, schema: str, screen: Screen) -> bool:
    started = time.monotonic()
    with Crew(WORKERS, ARGUMENTS) as crew:
        screen.say(f"$ {crew.command}")
        screen.say(f"  {WORKERS} processes: {', '.join(map(str, crew.pids))}")
        for progress in _progress(engine, orders, crew):
            screen.show(progress)
        screen.show(progress, final=True)
        seconds = time.monotonic() - started
        crew.stop()
    with engine.begin() as conn:
        verdicts = verify(conn, schema)
    screen.verdicts(verdicts)
    screen.say(_summary(verdicts, progress, seconds))
    return all(verdict.kept for verdict in verdicts)


def _progress(engine: Engine, orders: int, crew: Crew) -> Iterator[Progress]:
    """Place the orders and wait for the end of their jobs; ends early when none of them ends any more."""
    from sqlane_sa.demo.orders import place_orders

    placed, looked_at = 0, 0.0
    for placed in place_orders(orders):
        interrupts.check()
        if time.monotonic() - looked_at >= LOOK_INTERVAL:
            crew.check()
            yield Progress(placed, orders, *_jobs(engine))
            looked_at = time.monotonic()
    ended, changed_at = -1, time.monotonic()
    while time.monotonic() - changed_at < PATIENCE:
        interrupts.check()
        progress = Progress(placed, orders, *_jobs(engine))
        yield progress
        if progress.ended == progress.jobs:
            return
        if progress.ended != ended:
            ended, changed_at = progress.ended, time.monotonic()
        crew.check()
        time.sleep(LOOK_INTERVAL)


def _jobs(engine: Engine) -> tuple[int, int]:
    """How many jobs have ended, and how many there are."""
    from sqlane_sa.demo import app

    status = app.queue.tables.jobs.c.status
    with engine.begin() as conn:
        row = conn.execute(
            select(func.count().filter(status.in_(("completed", "failed"))), func.count()).select_from(
                app.queue.tables.jobs
            )
        ).one()
    return row[0], row[1]


def _summary(verdicts: list[Verdict], progress: Progress, seconds: float) -> str:
    broken = sum(not verdict.kept for verdict in verdicts)
    speed = f"{progress.ended:,} jobs of {progress.placed:,} orders by {WORKERS} workers in {seconds:.1f} s"
    if broken:
        return f"{broken} of {len(verdicts)} promises broken: {speed}"
    return f"all {len(verdicts)} promises kept: {speed}"
