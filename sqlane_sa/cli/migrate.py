"""`sqlane migrate`: brings the tables of a queue to a revision, for applications without an Alembic chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sqlane_sa.cli.options import Command, Place, described, place_options
from sqlane_sa.cli.problems import Commands, Problem

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from sqlane_sa.queue import Queue

NAME = "sqlane migrate"

sql_option = click.option("--sql", is_flag=True, help="Print the SQL script instead; needs no database.")


def from_option(default: str) -> Callable[[Command], Command]:
    help = f"With --sql: the revision that the tables are at.  [default: {default}]"
    return click.option("--from", "start", metavar="REVISION", help=help)


@click.group(cls=Commands, invoke_without_command=True, short_help="Create or update the tables of a queue.")
@sql_option
@from_option("base")
@place_options
@click.pass_context
def migrate(ctx: click.Context, /, sql: bool, start: str | None, **place: str | None) -> None:
    """Create or update the tables of a queue; without a COMMAND, to the newest revision.

    An application with an Alembic chain of its own calls sqlane_sa.migrations.upgrade() in a revision instead.
    """
    scripted = _wants_script(sql, start)
    if ctx.invoked_subcommand is not None:
        if scripted:
            raise click.UsageError(f"--sql comes behind the command: {NAME} {ctx.invoked_subcommand} --sql")
    elif scripted:
        _print_script(Place(**place), start or "base", "head", upwards=True)
    else:
        _upgrade(Place(**place), "head")


@migrate.command(short_help="Bring the tables up to a revision.")
@click.argument("revision", default="head", metavar="[REVISION]")
@sql_option
@from_option("base")
@place_options
@click.pass_context
def upgrade(ctx: click.Context, /, revision: str, sql: bool, start: str | None, **place: str | None) -> None:
    """Bring the tables up to REVISION, by default the newest.

    REVISION is an id, such as sqlane_0001 or 0001. A missing schema is created. Any number of processes may do this at
    once: one migrates, and the others wait for it.
    """
    at = _place(ctx, place)
    if _wants_script(sql, start):
        _print_script(at, start or "base", revision, upwards=True)
    else:
        _upgrade(at, revision)


@migrate.command(short_help="Take the tables back to a revision.")
@click.argument("revision")
@sql_option
@from_option("head")
@place_options
@click.pass_context
def downgrade(ctx: click.Context, /, revision: str, sql: bool, start: str | None, **place: str | None) -> None:
    """Take the tables back to REVISION; "base" drops them with their jobs.

    Stop the workers first: dropping a table waits 1.5 s for the transactions that use it, and then gives up.
    """
    at = _place(ctx, place)
    if _wants_script(sql, start):
        _print_script(at, start or "head", revision, upwards=False)
    else:
        _downgrade(at, revision)


@migrate.command(short_help="Print the revision of the tables.")
@place_options
@click.pass_context
def current(ctx: click.Context, /, **place: str | None) -> None:
    """Print the revision that the tables are at: "base" before the first migration."""
    from sqlane_sa import migrations
    from sqlane_sa.cli.database import connected
    from sqlane_sa.migrations import calls
    from sqlane_sa.migrations.target import target_of

    at = _place(ctx, place)
    queue = at.queue()
    with connected(at.url, NAME) as engine:
        found = migrations.current(engine, queue)
    if found is None:
        click.echo(f"base (not migrated yet; `{calls.command(target_of(queue))}` makes the tables)")
    else:
        click.echo(f"{found}{' (head)' if found == migrations.head() else ''}")


@migrate.command(short_help="Exit 1 unless the tables are up to date.")
@place_options
@click.pass_context
def check(ctx: click.Context, /, **place: str | None) -> None:
    """Change nothing; exit 1 unless the tables are at the newest revision."""
    from sqlane_sa import migrations
    from sqlane_sa.cli.database import connected

    at = _place(ctx, place)
    queue = at.queue()
    with connected(at.url, NAME) as engine:
        migrations.check(engine, queue)
        click.echo(f"{_where(engine, queue)}: at {migrations.head()}, as this version needs")


def _upgrade(at: Place, revision: str) -> None:
    from sqlane_sa import migrations
    from sqlane_sa.cli.database import connected

    queue = at.queue()
    with connected(at.url, NAME) as engine:
        before = migrations.current(engine, queue)
        _report(engine, queue, before, migrations.apply(engine, queue, revision))


def _downgrade(at: Place, revision: str) -> None:
    from sqlane_sa import migrations
    from sqlane_sa.cli.database import connected

    queue = at.queue()
    with connected(at.url, NAME) as engine:
        before = migrations.current(engine, queue)
        _report(engine, queue, before, migrations.revert(engine, queue, revision))


def _report(engine: Engine, queue: Queue, before: str | None, ran: list[str]) -> None:
    from sqlane_sa import migrations

    after = migrations.current(engine, queue) or "base"
    outcome = f"migrated from {before or 'base'} to {after}" if ran else f"already at {after}"
    click.echo(f"{_where(engine, queue)}: {outcome}")


def _print_script(at: Place, start: str, end: str, *, upwards: bool) -> None:
    from sqlane_sa import migrations
    from sqlane_sa.migrations.chain import number

    low, high = (start, end) if upwards else (end, start)
    if number(low) > number(high):
        raise Problem(f"from {start} to {end} goes the wrong way; use `{NAME} {'downgrade' if upwards else 'upgrade'}`")
    click.echo(migrations.sql(at.queue(), start, end), nl=False)


def _wants_script(sql: bool, start: str | None) -> bool:
    if start is not None and not sql:
        raise Problem("--from goes with --sql only: a database knows which revision it is at")
    return sql


def _place(ctx: click.Context, /, given: dict[str, str | None]) -> Place:
    """The options may stand before the command's name too; those after it win."""
    outer = ctx.parent
    assert outer is not None
    for name in given:
        written_before = outer.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if written_before and ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            given[name] = outer.params[name]
    return Place(**given)


def _where(engine: Engine, queue: Queue) -> str:
    from sqlalchemy import func, select

    with engine.connect() as conn:
        return described(queue.tables, str(conn.scalar(select(func.current_schema()))))
