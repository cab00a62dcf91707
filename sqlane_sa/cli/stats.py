"""`sqlane stats`: what waits, runs, is stuck and has failed, per name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sqlane_sa.cli.ages import age
from sqlane_sa.cli.options import Place, place_options

if TYPE_CHECKING:
    from sqlane_sa.values.job import NameStats

HEADINGS = ("name", "pending", "due", "running", "stuck", "failed", "oldest due")


@click.command(short_help="Show what waits, runs and has failed, per name.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list; the age of the oldest due job is in ms.")
@place_options
def stats(as_json: bool, **place: str | None) -> None:
    """Show the counts of each name that has jobs waiting, running or failed."""
    from sqlane_sa import migrations
    from sqlane_sa.cli.database import connected

    at = Place(**place)
    queue = at.queue()
    with connected(at.url, "sqlane stats") as engine, engine.connect() as conn:
        migrations.check(conn, queue)
        found = list(queue.stats(conn).values())
    if as_json:
        click.echo(json.dumps([one._asdict() for one in found], indent=2))
    elif found:
        _show(found)
    else:
        click.echo("the queue is empty: nothing waits, runs or has failed")


def _show(found: Sequence[NameStats]) -> None:
    from sqlane_sa.cli.table import show_table

    rows = [
        (one.name, *(f"{count:,}" for count in one[1:6]), "" if one.oldest_due_ms is None else age(one.oldest_due_ms))
        for one in found
    ]
    show_table(HEADINGS, rows)
