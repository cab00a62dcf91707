"""`sqlane doctor`: whether something slows the queue down that its jobs do not show."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sqlane_sa.cli.ages import age
from sqlane_sa.cli.options import Place, described, place_options, queue_argument
from sqlane_sa.cli.table import show_table
from sqlane_sa.values.text import printable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from sqlane_sa.cli.findings import Finding
    from sqlane_sa.queue import Queue
    from sqlane_sa.values.health import Health, TableHealth

NAME = "sqlane doctor"
NO_RIGHT = "42501"
HEADINGS = ("table", "live rows", "dead rows", "HOT", "size", "indexes", "vacuumed", "analyzed")
INDENT = 21
HARD_SPACE = "\xa0"
UNSEEN = (
    "this user may not see how old the snapshots of other users are, only how many transactions they span; "
    "a member of pg_read_all_stats may"
)


@click.command(short_help="Look for what slows the queue down.")
@queue_argument
@click.option("--json", "as_json", is_flag=True, help="Findings and figures as JSON; ages in ms, sizes in bytes.")
@place_options
def doctor(path: str | None, as_json: bool, **place: str | None) -> None:
    """Look for what slows the queue down: due jobs that no worker takes, names whose jobs fail, expired jobs that none
    deletes, old snapshots, dead rows, invalid indexes, a full queue of notifications.

    It reads statistics and a few rows. Exit 1 when there is something to look at. MODULE:QUEUE, such as app.jobs:queue,
    names the queue; without it --prefix and --schema do.
    """
    from sqlane_sa.cli.database import connected
    from sqlane_sa.cli.loading import queue_at

    at = Place(**place)
    queue = queue_at(path, at)
    with connected(at.url, NAME, pool_size=1) as engine, engine.begin() as conn:
        shown_at, found, health = _examine(conn, queue)
    bad = sum(not finding.ok for finding in found)
    if as_json:
        click.echo(json.dumps(_as_json(found, health), indent=2))
    else:
        click.echo(f"{shown_at}: {f'{bad} to look at' if bad else 'nothing to look at'}\n")
        _show(found, health)
    if bad:
        raise click.exceptions.Exit(1)


def _examine(conn: Connection, queue: Queue) -> tuple[str, list[Finding], Health]:
    from sqlalchemy import func, select

    from sqlane_sa import store
    from sqlane_sa.cli.findings import findings

    store.pin_plans(conn)  # for its patience with locks
    shown_at = described(queue.tables, str(conn.scalar(select(func.current_schema()))))
    revision = _revision(conn, queue)
    by_tables = _by_tables(conn, queue) if revision.ok else []
    health = store.health(conn, queue.tables)
    return shown_at, [revision, *by_tables, *findings(health, queue.tables)], health


def _by_tables(conn: Connection, queue: Queue) -> list[Finding]:
    """Nothing for a user who may not read the tables: the rest is for any."""
    from sqlalchemy.exc import DBAPIError

    from sqlane_sa import store
    from sqlane_sa.cli.findings import COUNTED, FAILED_COUNTED, FAILED_WITHIN, expired, failures, unserved, workers
    from sqlane_sa.sqlstate import sqlstate

    try:
        with conn.begin_nested():
            delays = dict(store.probe(conn, queue.tables))
            at_work = workers(list(delays.values()), store.worker_seen(conn, queue.tables))
            # Where no worker is seen, that has been said.
            names = unserved(delays, store.running_names(conn, queue.tables)) if at_work.ok else ()
            failed = store.count_failed(conn, queue.tables, within=FAILED_WITHIN, limit=FAILED_COUNTED)
            overdue = store.find_overdue(conn, queue.tables, limit=COUNTED)
            return [at_work, *names, *failures(failed), expired(overdue)]
    except DBAPIError as error:
        if sqlstate(error) != NO_RIGHT:
            raise
        return []


def _revision(conn: Connection, queue: Queue) -> Finding:
    from sqlane_sa import migrations
    from sqlane_sa.cli.findings import Finding
    from sqlane_sa.values.errors import SchemaError

    try:
        migrations.check(conn, queue)
    except SchemaError as error:
        return Finding("revision", False, str(error))
    return Finding("revision", True, f"{migrations.head()}, as this version needs")


def _show(found: Sequence[Finding], health: Health) -> None:
    width = shutil.get_terminal_size().columns
    for finding in found:
        verdict = click.style("ok  ", fg="green") if finding.ok else click.style("look", fg="red", bold=True)
        said = _wrapped(finding.said + (f": {finding.why}" if finding.why else ""), width)
        click.echo(f"{verdict}  {finding.topic:{INDENT - 6}}{said}")
        if finding.step:
            # In one line, to be copied.
            click.echo(" " * INDENT + printable(finding.step))
    if not health.sees_others:
        click.echo(f"{'note':6}{'rights':{INDENT - 6}}{_wrapped(UNSEEN, width)}")
    if health.tables:
        click.echo()
        show_table(HEADINGS, [_row(table) for table in health.tables])


def _wrapped(text: str, width: int) -> str:
    """A command in backquotes stays in one line, to be copied."""
    indent = " " * INDENT
    whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", HARD_SPACE), printable(text))
    wrapped = click.wrap_text(whole, max(width - 1, 60), initial_indent=indent, subsequent_indent=indent)
    return wrapped.replace(HARD_SPACE, " ").removeprefix(indent)


def _row(table: TableHealth) -> Sequence[str]:
    share = table.hot_share
    return (
        table.name,
        f"{table.live_rows:,}",
        f"{table.dead_rows:,}",
        "" if share is None else f"{share:.0%}",
        _size(table.bytes),
        _size(table.index_bytes),
        _ago(table.vacuum_age_ms),
        _ago(table.analyze_age_ms),
    )


def _ago(ms: int | None) -> str:
    """One unit: a table has eight columns."""
    return "never" if ms is None else " ".join(age(ms).split()[:2])


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} TB"


def _as_json(found: Sequence[Finding], health: Health) -> object:
    return {
        "ok": all(finding.ok for finding in found),
        "findings": [finding._asdict() for finding in found],
        **health._asdict(),
        "snapshot": None if health.snapshot is None else health.snapshot._asdict(),
        "tables": [table._asdict() | {"hot_share": table.hot_share} for table in health.tables],
    }
