"""`sqlane stats`: what waits, runs, is stuck, has failed and has completed, per name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sqlane_sa.cli.ages import age
from sqlane_sa.cli.options import Place, place_options, queue_argument

if TYPE_CHECKING:
    from sqlane_sa.values.job import NameStats

HEADINGS = ("name", "pending", "due", "running", "stuck", "failed", "oldest due")
MAX_BYTES = 32 * 2**20
"""Completed jobs are counted without being asked for in a jobs table that is read in a moment: some 150,000 jobs."""
NOT_COUNTED = "what has completed is not counted in a table so large; `sqlane stats --all` counts it"


@click.command(short_help="Show what waits, runs, failed and completed, per name.")
@queue_argument
@click.option("--json", "as_json", is_flag=True, help="A JSON list; the age of the oldest due job is in ms.")
@click.option("--all", "count_all", is_flag=True, help="Count completed jobs by reading a large table, too.")
@place_options
def stats(path: str | None, as_json: bool, count_all: bool, **place: str | None) -> None:
    """Show the counts of each name's jobs.

    Failed and completed are those that are still kept: by default 14 days, and one day. Completed ones are counted
    while the jobs table has less than 32 MB; to count them in a larger one, which --all does, all of it is read.

    MODULE:QUEUE, such as app.jobs:queue, names the queue; without it --prefix and --schema do.
    """
    from sqlane_sa import migrations, store
    from sqlane_sa.cli.database import connected
    from sqlane_sa.cli.loading import queue_at

    at = Place(**place)
    queue = queue_at(path, at)
    with connected(at.url, "sqlane stats") as engine, engine.connect() as conn:
        migrations.check(conn, queue)
        counted = store.count_completed(conn, queue.tables, max_bytes=None if count_all else MAX_BYTES)
        found = _with_completed(queue.stats(conn), counted or {})
    if as_json:
        rows = [
            one._asdict() | {"completed": None if counted is None else counted.get(name, 0)}
            for name, one in found.items()
        ]
        click.echo(json.dumps(rows, indent=2))
    elif found:
        _show(found, counted)
    else:
        click.echo("the queue is empty: nothing waits, runs or has failed")
    if counted is None and not as_json:
        click.echo(NOT_COUNTED)


def _with_completed(found: Mapping[str, NameStats], counted: Mapping[str, int]) -> dict[str, NameStats]:
    """By name, also those of which there is nothing else."""
    from sqlane_sa.values.job import NameStats

    return {name: found.get(name) or NameStats(name, 0, 0, 0, 0, 0, None) for name in sorted({*found, *counted})}


def _show(found: Mapping[str, NameStats], counted: Mapping[str, int] | None) -> None:
    from sqlane_sa.cli.table import show_table

    headings = [*HEADINGS[:-1], *(() if counted is None else ("completed",)), HEADINGS[-1]]
    rows = [_row(one, counted) for one in found.values()]
    show_table(headings, rows)


def _row(one: NameStats, counted: Mapping[str, int] | None) -> list[str]:
    counts = [*one[1:6], *(() if counted is None else (counted.get(one.name, 0),))]
    return [one.name, *(f"{count:,}" for count in counts), "" if one.oldest_due_ms is None else age(one.oldest_due_ms)]
