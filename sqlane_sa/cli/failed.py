"""`sqlane failed`: the jobs that failed for good, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sqlane_sa.cli.ages import age
from sqlane_sa.cli.options import Place, names_of, names_option, place_options, queue_argument

if TYPE_CHECKING:
    from sqlane_sa.store import FailedEntry

HEADINGS = ("id", "name", "attempts", "stalls", "failed ago")


@click.command(short_help="List the jobs that failed for good.")
@queue_argument
@names_option("Jobs of these names only; may be repeated.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), metavar="COUNT", help="At most so many."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON list with the whole errors; ages in ms.")
@place_options
def failed(path: str | None, names: tuple[str, ...], limit: int, as_json: bool, **place: str | None) -> None:
    """List the jobs that failed for good and are still kept, the last to fail first, each with the first line of its
    error.

    --json has the whole error, with its traceback. `sqlane retry` sets failed jobs back to pending.

    MODULE:QUEUE, such as app.jobs:queue, names the queue; without it --prefix and --schema do.
    """
    from sqlane_sa import migrations, store
    from sqlane_sa.cli.database import connected
    from sqlane_sa.cli.loading import queue_at

    at = Place(**place)
    queue, served = queue_at(path, at), names_of(names)
    with connected(at.url, "sqlane failed", pool_size=1) as engine, engine.connect() as conn:
        migrations.check(conn, queue)
        # One more, to know whether there are more.
        found = store.find_failed(conn, queue.tables, limit=limit + 1, names=served)
    if as_json:
        click.echo(json.dumps([_as_json(one) for one in found[:limit]], indent=2))
    elif found:
        _show(found[:limit])
        if len(found) > limit:
            click.echo("there are more: --limit shows more of them, and `sqlane stats` counts them")
    else:
        click.echo(f"no failed job{' of these names' if served else ''} is kept")


def _show(found: Sequence[FailedEntry]) -> None:
    from sqlane_sa.cli.table import show_notes

    show_notes(HEADINGS, [_row(one) for one in found], [first_line(one.last_error) for one in found])


def _row(one: FailedEntry) -> list[str]:
    ago = "" if one.age_ms is None else age(max(one.age_ms, 0))
    return [one.id, one.name, f"{one.attempts} of {one.max_attempts}", str(one.stalls), ago]


def first_line(error: Any) -> str:
    """Of an error as it is stored, or of whatever else somebody has written there."""
    if not isinstance(error, dict):
        return "no error is kept" if error is None else str(error)
    words = (str(error.get(part) or "").strip().partition("\n")[0] for part in ("type", "message"))
    return ": ".join(word for word in words if word) or "an error without type and message"


def _as_json(one: FailedEntry) -> dict[str, Any]:
    finished = None if one.finished_at is None else one.finished_at.isoformat()
    return one._asdict() | {"finished_at": finished}
