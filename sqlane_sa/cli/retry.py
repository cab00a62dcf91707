"""`sqlane retry`: failed jobs start again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from sqlane_sa.cli.options import Place, in_utf8, names_of, names_option, place_options
from sqlane_sa.cli.problems import Problem
from sqlane_sa.values.text import printable

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from sqlane_sa.queue import Queue

BATCH = 500
"""Jobs set back in one transaction: what is locked, or lost when the command is interrupted."""


@click.command(short_help="Set failed jobs back to pending.")
@click.argument("ids", nargs=-1, metavar="[ID]...", callback=in_utf8)
@names_option("All failed jobs of these names; may be repeated.")
@click.option("--limit", type=click.IntRange(1), metavar="COUNT", help="With --names: at most so many.  [default: all]")
@place_options
def retry(ids: tuple[str, ...], names: tuple[str, ...], limit: int | None, **place: str | None) -> None:
    """Set failed jobs back to pending, due now and with all their attempts; by their ids, which `sqlane failed` lists,
    or all of a name, the first to be enqueued first.

    What has failed again in the meantime is not set back a second time by the same command.
    """
    from sqlane_sa import migrations
    from sqlane_sa.cli.database import connected

    chosen = names_of(names)
    _refuse_unclear(ids, chosen, limit)
    at = Place(**place)
    queue = at.queue()
    with connected(at.url, "sqlane retry", pool_size=1) as engine:
        migrations.check(engine, queue)
        if chosen is None:
            _retry_ids(engine, queue, list(dict.fromkeys(ids)))
        else:
            _retry_names(engine, queue, chosen, limit)


def _refuse_unclear(ids: Sequence[str], names: Sequence[str] | None, limit: int | None) -> None:
    if not ids and not names:
        raise click.UsageError("which jobs? Give their ids, as `sqlane failed` lists them, or --names")
    if ids and names is not None:
        raise click.UsageError("ids and --names exclude each other")
    if ids and limit is not None:
        raise click.UsageError("--limit goes with --names")


def _retry_ids(engine: Engine, queue: Queue, ids: Sequence[str]) -> None:
    changed: set[str] = set()
    for start in range(0, len(ids), BATCH):
        changed.update(_set_back(engine, queue, ids[start : start + BATCH]))
    if changed:
        _say(len(changed), "")
    left = [id_ for id_ in ids if id_ not in changed]
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5:,} more" if len(left) > 5 else "")
        raise Problem(
            f"not failed, and left as they are: {printable(shown)}; `sqlane failed` lists what can be set back"
        )


def _retry_names(engine: Engine, queue: Queue, names: Sequence[str], limit: int | None) -> None:
    for name in names:
        count = 0
        for ids in _batches(engine, queue, name, limit):
            count += len(_set_back(engine, queue, ids))
        _say(count, f" of {name}")
        limit = None if limit is None else limit - count
        if limit == 0:
            break


def _batches(engine: Engine, queue: Queue, name: str, limit: int | None) -> Iterator[list[str]]:
    """By ids that only go up, so that it comes to an end where jobs fail again at once."""
    from sqlane_sa import store

    after, left = "", limit
    while left is None or left > 0:
        size = BATCH if left is None else min(BATCH, left)
        with engine.connect() as conn:
            ids = store.failed_ids(conn, queue.tables, name=name, limit=size, after_id=after)
        if not ids:
            return
        yield ids
        after, left = ids[-1], None if left is None else left - len(ids)


def _set_back(engine: Engine, queue: Queue, ids: Sequence[str]) -> list[str]:
    from sqlane_sa import store

    with engine.begin() as conn:
        return store.retry_failed(conn, queue.tables, ids=ids)


def _say(count: int, of: str) -> None:
    jobs = "1 failed job" if count == 1 else f"{count:,} failed jobs"
    click.echo(printable(f"{jobs}{of} set back to pending" if count else f"no failed job{of}"))
