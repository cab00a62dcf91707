"""Bugs that are put into the workers of a chaos run on purpose: its counts must find each of these.

Those of `tests.model.bugs` can be put in as well; some of them need more luck, or another check, to be found.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from sqlane_sa.statement import Statement
from sqlane_sa.store import candidates, finish, locks, recovery
from tests.model import bugs

Options = dict[str, Any]


def token_check_removed(options: Options) -> None:
    """A finishing write changes the job whoever runs it by now."""
    _replace((locks, finish), "j.id = i.id AND j.lock_token = i.lock_token AND j.status", "j.id = i.id AND j.status")


def polling_removed(options: Options) -> None:
    """The notification is trusted: without one nobody looks."""
    options["poll_interval"] = 86400.0


def stale_check_removed(options: Options) -> None:
    """The sweep takes running jobs back whether or not their lease has ended."""
    _replace((recovery,), "AND locked_until < statement_timestamp()", "")


def line_ignored(options: Options) -> None:
    """A job with keys starts although an older one waits for them."""
    _replace((candidates,), "(a.run_at, a.id) < (c.run_at, c.id)", "false")


BUGS: dict[str, Callable[[Options], None]] = {
    bug.__name__: bug for bug in (token_check_removed, polling_removed, stale_check_removed, line_ignored)
}


def seed(bug: str, options: Options) -> None:
    """Put it into this process, before its worker is made. Raises KeyError for a name that is none."""
    if bug in bugs.BUGS:
        os.environ[bugs.VARIABLE] = bug
        bugs.seed_from_environment()
    else:
        BUGS[bug](options)


def alter(bug: str | None, conn: sa.Connection) -> None:
    """Change the tables where the bug is one of theirs."""
    if bug in bugs.BUGS:
        bugs.alter(bug, conn)


def _replace(modules: tuple[Any, ...], old: str, new: str) -> None:
    statements = {one for module in modules for one in vars(module).values() if isinstance(one, Statement)}
    hit = [one for one in statements if old in one.sql]
    assert hit, f"no statement holds {old!r} any more"
    for one in hit:
        one.sql = one.sql.replace(old, new)
