"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from sqlane_sa.queue import Queue
from sqlane_sa.schema import Tables
from sqlane_sa.values.errors import shown
from sqlane_sa.values.text import has_surrogate

VARIABLE = "SQLANE_DATABASE_URL"

Command = TypeVar("Command", bound=Callable[..., Any])


class Place(NamedTuple):
    """Where a queue is, as far as the command line says: None for what it leaves open."""

    url: str | None
    prefix: str | None
    schema: str | None

    def queue(self) -> Queue:
        """A queue without definitions. Raises `DefinitionError` for a prefix or schema that cannot be one."""
        return Queue("sqlane_" if self.prefix is None else self.prefix, self.schema)


def place_options(command: Command) -> Command:
    """Adds --url, --prefix and --schema; the command gets them as `url`, `prefix` and `schema`."""
    for option in reversed(
        (
            click.option(
                "--url",
                envvar=VARIABLE,
                show_envvar=True,
                help="The database, as postgresql://user@host/name.",
            ),
            click.option("--prefix", help="What the queue's table names start with.  [default: sqlane_]"),
            click.option("--schema", help="The queue's schema.  [default: the connection's]"),
        )
    ):
        command = option(command)
    return command


def queue_argument(command: Command) -> Command:
    """Adds MODULE:QUEUE, which need not be given; the command gets it as `path`, for `queue_at`."""
    return click.argument("path", required=False, metavar="[MODULE:QUEUE]")(command)


def names_option(help: str) -> Callable[[Command], Command]:
    """--names, which the command gets as `names`, for `names_of`."""
    return click.option("--names", multiple=True, metavar="NAME,...", help=help, callback=in_utf8)


def in_utf8(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """A callback for words that the database gets. Python hands on what is not UTF-8, as lone surrogates."""
    for word in given:
        if has_surrogate(word):
            raise click.BadParameter(f"{shown(word)} is not UTF-8, and no name or id is like that", ctx, parameter)
    return given


def names_of(given: Sequence[str]) -> list[str] | None:
    """The names of all --names, each once; None where there was none."""
    names = [name.strip() for group in given for name in group.split(",") if name.strip()]
    return list(dict.fromkeys(names)) if given else None


def described(tables: Tables, schema: str) -> str:
    """The tables of a queue for a person; `schema` for a queue that leaves it to the connection."""
    return f"{tables.prefix}* in schema {tables.schema or schema}"
