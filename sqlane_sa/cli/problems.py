"""Problems that can be foreseen: one sentence on stderr with the next step, and no traceback."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from sqlane_sa.values.errors import SqlaneError

VARIABLE = "SQLANE_TRACEBACK"
HELP_ASKED_FOR: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""How click 8.2 and later answers a bare `sqlane`."""


class Problem(click.ClickException):
    """What ends a command: exit code 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"sqlane: {self.format_message()}", file=file or sys.stderr)


class Misuse(Problem):
    """A command line that cannot be: exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """A group that knows what a mistyped command was meant to be."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        given = args[0]
        if given.startswith("-") or self.get_command(ctx, given) is not None:
            return super().resolve_command(ctx, args)
        meant = difflib.get_close_matches(given, self.list_commands(ctx))
        raise Misuse(f"there is no command {given!r}; {_look(meant, ctx)}")


class Explaining(Commands):
    """A group whose commands may raise any error of the package: its message is a sentence already."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        try:
            return super().make_context(*args, **settings)
        except click.UsageError as error:
            if isinstance(error, HELP_ASKED_FOR):
                raise
            raise _misuse(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _misuse(error) from None
        except (SqlaneError, Problem) as error:
            if os.environ.get(VARIABLE):
                traceback.print_exception(error)
            raise error if isinstance(error, Problem) else Problem(str(error)) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Problem(
                f"what is to be written finds no room: {error.strerror}; make some, or write elsewhere"
            ) from None


def _misuse(error: click.UsageError) -> Misuse:
    """In our words, with click's own about a value."""
    if isinstance(error, click.NoSuchOption):
        return Misuse(f"there is no option {error.option_name}; {_look(error.possibilities or (), error.ctx)}")
    said = error.format_message().rstrip(".")
    return Misuse(f"{said[:1].lower()}{said[1:]}; see `{_help(error.ctx)}`")


def _look(meant: Sequence[str], ctx: click.Context | None) -> str:
    guess = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"{guess}`{_help(ctx)}` lists them all"


def _help(ctx: click.Context | None) -> str:
    return f"{ctx.command_path if ctx else 'sqlane'} --help"
