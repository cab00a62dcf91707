"""Turn: what a worker does again and again, complete what has ended and claim what is due, in one statement.

One statement is one round trip and, on a connection in autocommit, one transaction. Each reply also costs the thread
that waits for it the time to get the interpreter back from the handlers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import Statement
from sqlane_sa.store.claim import STARTING, STARTING_BINDS, starting
from sqlane_sa.store.claimed import CLAIMED_WITH_PAYLOADS, WITH_PAYLOADS
from sqlane_sa.store.finish import COMPLETING
from sqlane_sa.store.locks import PAIRS, Locked, pairs
from sqlane_sa.values.job import ClaimedJob


class Turn(NamedTuple):
    """`skipped` are ids of jobs that were not completed: locked by somebody, or lost."""

    skipped: list[str]
    claimed: list[ClaimedJob]


_NOTHING = ", ".join(f"NULL AS {name}" for name in list(CLAIMED_WITH_PAYLOADS)[1:])

# What was skipped comes as a row without a name, and is looked for only when there is some.
COMPLETE_AND_CLAIM = Statement(
    "WITH"
    + COMPLETING
    + ","
    + STARTING
    + """, skipped AS (
    SELECT i.id FROM unnest(CAST(:ids AS text[])) AS i(id)
    WHERE (SELECT count(*) FROM completed) < cardinality(CAST(:ids AS text[]))
    EXCEPT ALL SELECT id FROM completed
)"""
    + WITH_PAYLOADS
    + "\nUNION ALL SELECT id, NOTHING FROM skipped\nORDER BY priority, run_at, id".replace("NOTHING", _NOTHING),
    {**PAIRS, **STARTING_BINDS},
    CLAIMED_WITH_PAYLOADS,
)


def complete_and_claim(
    conn: Connection,
    /,
    tables: Tables,
    *,
    jobs: Sequence[Locked],
    lanes: Sequence[tuple[str, int, int]],
    after: Mapping[tuple[str, int], tuple[datetime, str]],
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
) -> Turn:
    """`complete` for jobs without keys, and `claim_plain` for `lanes`, in one statement that waits for nobody.

    `after` holds, for lanes (name, priority) that have it, the place (run_at, id) where the claim begins: dead rows
    before it are not walked over, and neither are jobs that came in there since. A job that could not be completed is
    left to `complete`.
    """
    parameters = {**pairs(jobs), **starting(lanes, after, lock_token, locked_by, lease)}
    rows = list(conn.execute(COMPLETE_AND_CLAIM.on(tables), parameters).all())
    skipped: list[str] = []
    while rows and rows[-1][1] is None:  # NULLs are last
        skipped.append(rows.pop()[0])
    return Turn(skipped, list(map(ClaimedJob._make, rows)))
