"""Bugs that are put into the workers of a chaos run on purpose: its counts must find each of these.

Those of `tests.model.bugs` can be put in as well; some of them need more luck, or another check, to be found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tests.model import bugs
from tests.model.bugs import AHEAD, KEYED_CLAIMS, KEYED_COMPLETION, RUNNING, TOKEN, TURN, Edit

Options = dict[str, Any]

FENCED = ("finish.COMPLETE", "finish.COMPLETE_AND_END", "finish.RENEW", "finish.MARK_TIMED_OUT", KEYED_COMPLETION)
IN_TURNS = (TURN, "turn.COMPLETE_FREE")
"""Their fence stands three times: in the look, and in each of the writes."""
OF_ONE = " AND j.lock_token = CAST(:token AS text)"
SORTED_BY_LINES = (*KEYED_CLAIMS, "candidates.WINDOWED", "candidates.WALKED", "lines.FIND_FREE")
LEASE_ENDED = " AND locked_until < statement_timestamp()"


@dataclass(frozen=True)
class Bug:
    """Texts of the store and options of the worker that are others than they should be.

    `duties` are texts of the statements that do what the bug spoils: a worker must use some with each, and none that
    has not changed.
    """

    edits: tuple[Edit, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    duties: tuple[str, ...] = ()


def without(text: str, *statements: str, instead: str = "", times: int = 1) -> tuple[Edit, ...]:
    return tuple(Edit(statement, text, instead, times) for statement in statements)


BUGS: Mapping[str, Bug] = {
    # A finishing write changes the job whoever runs it by now.
    "token_check_removed": Bug(
        (
            *without(TOKEN + RUNNING, *FENCED, "locks.LOCK_RUNNING", instead=RUNNING),
            *without(TOKEN, *IN_TURNS, times=3),
            *without(OF_ONE, "last_step.COMPLETE_ONE", instead=" AND CAST(:token AS text) > ''", times=2),
            Edit("locks.LOCK_RUNNING", "\nSELECT j.id, j.lock_token,", "\nSELECT j.id, i.lock_token,"),
        ),
        duties=("status = 'completed'", "SELECT j.ctid, j.id, j.lock_token"),
    ),
    # The sweep takes running jobs back whether or not their lease has ended.
    "stale_check_removed": Bug(
        without(LEASE_ENDED, "recovery.FIND_STALE", "recovery.LOCK_STALE"),
        duties=("ORDER BY locked_until", "lock_token, locked_by, attempts, max_attempts, stalls"),
    ),
    # The notification is trusted: without one nobody looks.
    "polling_removed": Bug(options={"poll_interval": 86400.0}),
    # A job with keys starts although an older one waits for them.
    "line_ignored": Bug(without(AHEAD + "1", *SORTED_BY_LINES, instead=AHEAD + "0"), duties=("INSERT INTO {mutexes}",)),
}


@contextmanager
def seeded(bug: str, options: Options) -> Iterator[None]:
    """Within the block, this process and a worker made of the options have it. Raises LookupError for a name that is
    none, or when a text is not there any more."""
    with bugs.edited(bug, BUGS[bug].edits):
        options.update(BUGS[bug].options)
        yield


def seed(bug: str, options: Options) -> None:
    """Put it into this process, as long as it lives, before its worker is made."""
    if bug in bugs.BUGS:
        os.environ[bugs.VARIABLE] = bug
        bugs.seed_from_environment()
    else:
        _seeds.enter_context(seeded(bug, options))


_seeds = ExitStack()
"""Kept: a generator that nobody refers to is closed, and its bug mended."""


def alter(bug: str | None, conn: sa.Connection) -> None:
    """Change the tables where the bug is one of theirs."""
    if bug in bugs.BUGS:
        bugs.alter(bug, conn)
