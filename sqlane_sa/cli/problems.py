"""Problems that can be foreseen: one sentence on stderr with the next step, and no traceback."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any

import click

from sqlane_sa.values.errors import SqlaneError

VARIABLE = "SQLANE_TRACEBACK"


class Problem(click.ClickException):
    """What ends a command: exit code 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"sqlane: {self.format_message()}", file=file or sys.stderr)


class Explaining(click.Group):
    """A group whose commands may raise any error of the package: its message is a sentence already."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
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
