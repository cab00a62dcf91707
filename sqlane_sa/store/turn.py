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
from sqlane_sa.statement import TEXT, Statement
from sqlane_sa.store.claim import STARTING, STARTING_BINDS, starting
from sqlane_sa.store.claimed import CLAIMED_WITH_PAYLOADS, WITH_PAYLOADS
from sqlane_sa.store.finish import EMPTYING, END_TIMES, UNLOCK
from sqlane_sa.store.locks import PAIRS, RUNNING, Locked, pairs
from sqlane_sa.values.job import ClaimedJob


class Turn(NamedTuple):
    """`skipped` are ids of jobs that were not completed: locked by somebody now or before, or lost."""

    skipped: list[str]
    claimed: list[ClaimedJob]


_NOTHING = ", ".join(f"NULL AS {name}" for name in list(CLAIMED_WITH_PAYLOADS)[1:])

# Rows that somebody has locked are left out without a lock of their own, which would write each of them twice: xmax
# holds a lock or a version to come. The claim and the renewals lock what they write, which leaves the row's own xmin
# there. A lock that is gone may leave its xmax behind; such a row is left out too.
#
# A row that changes between the look and the write is met at its new version, where not every release of PostgreSQL
# compares the place (ctid) again: so the writes compare the token.
_COMPLETING = (
    """
input AS MATERIALIZED (
    SELECT j.ctid, j.lock_token, j.completed_retention_ms, """
    + END_TIMES
    + """
    FROM """
    + RUNNING.replace("FOR NO KEY UPDATE", "AND j.xmax IN (CAST('0' AS xid), j.xmin) LIMIT 1")
    + f"""
), kept AS (
    UPDATE {{jobs}} AS j SET status = 'completed', attempts = j.attempts + 1, finished_at = i.finished_at,
        expires_at = i.expires_at, timed_out_at = NULL, {UNLOCK}
    FROM input AS i
    WHERE j.ctid = i.ctid AND j.lock_token = i.lock_token AND i.completed_retention_ms IS DISTINCT FROM 0
    RETURNING j.id
), dropped AS (
    DELETE FROM {{jobs}} AS j USING input AS i
    WHERE j.ctid = i.ctid AND j.lock_token = i.lock_token AND i.completed_retention_ms = 0
    RETURNING j.id
"""
    + EMPTYING
)

COMPLETE_FREE = Statement("WITH" + _COMPLETING + "\nSELECT id FROM completed", PAIRS, {"id": TEXT})

# What was skipped comes as a row without a name, and is looked for only when there is some.
COMPLETE_AND_CLAIM = Statement(
    "WITH"
    + _COMPLETING
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


def complete_free(conn: Connection, /, tables: Tables, *, jobs: Sequence[Locked]) -> list[str]:
    """`complete` for jobs without keys whose rows nobody has locked since they started or were renewed; the others are
    left to `complete_unlocked` or `complete`. The ids changed.

    Who locks a row within the microseconds between its look and its write is waited for; give the session a
    `lock_timeout`, as `pin_session` does.
    """
    return [row[0] for row in conn.execute(COMPLETE_FREE.on(tables), pairs(jobs)).all()] if jobs else []


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
    """`complete_free`, and `claim_plain` for `lanes`, in one statement.

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
