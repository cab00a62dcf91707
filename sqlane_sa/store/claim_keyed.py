"""Claim of jobs with mutex keys: in one statement, for the ordinary case.

What `find_candidates` and `claim` do in six round trips. All parts of it see one snapshot, and the locks see what is
there now; the differences between the two decide what may start:

- The candidates can start by the snapshot: their keys are free, and nobody who is due is ahead in a line of theirs.
- The lock is taken without waiting, and only what nobody has changed since the snapshot starts. The rest is left for
  the next claim: it may be behind others now.
- The keys are taken by the unique index, which knows no snapshot: a key that somebody has taken since stays his, one
  whose linger has begun too, and one that was freed is free. In ascending order, for all jobs at once, so that two
  claims cannot wait for each other in a circle. Two candidates share a key only where a place in its line is missing:
  the older gets it.
- Only jobs that got all their keys start. What the others got cannot be given back by the same statement, which does
  not see its own rows: they are returned, and put back before the transaction ends. One who has no transaction has the
  statement fail instead, as a `whole`, and claims by `find_candidates` and `claim`.

A wait for a key is as rare as two snapshots with different heads of one line; where one was long, the leases are
renewed from after it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, BOOL, INT, INTS, TEXT, TEXTS, Statement, Types
from sqlane_sa.store.candidates import DUE_IN_LANE, LANES, STARTABLE_HEAD, STARTABLE_IN_WINDOW, WINDOW
from sqlane_sa.store.claim import PUT_BACK, SET_RUNNING
from sqlane_sa.store.claimed import CLAIMED
from sqlane_sa.store.finish import renew_leases
from sqlane_sa.store.lines import HEADS_OF_KEYS
from sqlane_sa.store.payloads import INLINE_BYTES
from sqlane_sa.store.reading import distinct_keys
from sqlane_sa.values.duration import seconds, to_ms
from sqlane_sa.values.job import ClaimedJob

LONG_WAIT = 0.01
"""What part of a lease may be used up by a wait."""

# The names of a priority take turns.
_CHOSEN = """, chosen AS MATERIALIZED (
    SELECT f.place FROM (
        SELECT place, id, job_name, priority, run_at,
               row_number() OVER (PARTITION BY job_name, priority ORDER BY run_at, id) AS turn FROM found) AS f
    ORDER BY f.priority, f.turn, f.run_at, f.id LIMIT :max_rows
)"""

# A lock follows a row to the place (ctid) where somebody has put it since the snapshot. Where it has not moved it is as
# the snapshot has it, and stands still from then on. They are compared outside of what locks: in there, the place is
# what the row is looked up by, and after a wait that may not be judged anew.
#
# Which jobs lack a key is looked for only when there are fewer than were asked for: without hash and merge joins,
# anything but a set operation compares each with each.
#
# Places in the lines are only ever inserted and deleted, so that one of the snapshot is where it was; a DELETE with
# USING makes a row of each row that it joins, which costs more than the deletion.
_TAKEN = (
    """, locked AS MATERIALIZED (
    SELECT j.place, c.place AS found_at, j.id, j.run_at, j.mutex_keys FROM chosen AS c CROSS JOIN LATERAL (
        SELECT j.ctid AS place, j.id, j.run_at, j.mutex_keys FROM {jobs} AS j
        WHERE j.ctid = c.place AND coalesce(j.status, '') = 'pending' AND j.run_at <= statement_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED) AS j
), wanted AS MATERIALIZED (
    SELECT l.place, l.id, l.run_at, k.mutex_key
    FROM locked AS l LEFT JOIN LATERAL unnest(l.mutex_keys) AS k(mutex_key) ON k.mutex_key IS NOT NULL
    WHERE l.place = l.found_at
), acquired AS (
    INSERT INTO {mutexes} AS m (mutex_key, job_id, lock_token, held_until, created_at)
    SELECT DISTINCT ON (w.mutex_key) w.mutex_key, w.id, :lock_token, NULL, statement_timestamp()
    FROM wanted AS w WHERE w.mutex_key IS NOT NULL ORDER BY w.mutex_key, w.run_at, w.id
    ON CONFLICT (mutex_key) DO UPDATE
    SET job_id = excluded.job_id, lock_token = excluded.lock_token, held_until = NULL, created_at = excluded.created_at
    -- Immutable functions only here (Citus): the time comes along in the row.
    WHERE m.held_until <= excluded.created_at
    RETURNING mutex_key, job_id
), lacking AS MATERIALIZED (
    SELECT DISTINCT d.id FROM (
        SELECT w.mutex_key, w.id FROM wanted AS w
        WHERE w.mutex_key IS NOT NULL AND (SELECT count(*) FROM acquired) < (SELECT count(mutex_key) FROM wanted)
        EXCEPT SELECT a.mutex_key, a.job_id FROM acquired AS a) AS d
), started AS ("""
    + SET_RUNNING.replace(
        "ROWS", "ctid = ANY(ARRAY(SELECT w.place FROM wanted AS w WHERE w.id <> ALL(ARRAY(SELECT id FROM lacking))))"
    )
    + """
), off AS (
    DELETE FROM {waits} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM wanted AS c CROSS JOIN LATERAL (
            SELECT w.ctid FROM {waits} AS w
            WHERE w.mutex_key = c.mutex_key AND w.run_at = c.run_at AND w.job_id = c.id LIMIT 1) AS p
        WHERE c.id <> ALL(ARRAY(SELECT id FROM lacking))))
)"""
)

_RESULT = (
    """
SELECT """
    + ", ".join(f"s.{name}" for name in CLAIMED)
    + """,
       (SELECT CAST(p.payload AS text) FROM {payloads} AS p
        WHERE p.id = s.id AND octet_length(CAST(p.payload AS text)) <= :inline_bytes) AS payload_text,
       o.lost, o.short_names
FROM (SELECT nullif(ARRAY(SELECT DISTINCT CASE WHEN CAST(:whole AS boolean)
                               THEN CAST(CAST('job ' || a.job_id || ' got a part of its mutex keys, is claimed anew'
                                              AS integer) AS text)
                               ELSE a.job_id END FROM acquired AS a
                           WHERE a.job_id = ANY(ARRAY(SELECT id FROM lacking))), '{}') AS lost,
             nullif(SHORT, '{}') AS short_names) AS o
LEFT JOIN started AS s ON true
ORDER BY s.priority, s.run_at, s.id"""
)

_BINDS: Types = {
    "names": TEXTS,
    "max_rows": INT,
    "lock_token": TEXT,
    "locked_by": TEXT,
    "lease_ms": BIG,
    "inline_bytes": INT,
    "whole": BOOL,
}
_COLUMNS: Types = {**CLAIMED, "payload_text": TEXT, "lost": TEXTS, "short_names": TEXTS}

# A lane is short when its window is full, and too few of it and the better ones can start: there may be more behind.
CLAIM_IN_WINDOW = Statement(
    LANES.replace("KEYED", "NOT NULL")
    + """, found AS MATERIALIZED (
    SELECT s.place, s.id, l.job_name, l.priority, s.run_at FROM lane AS l CROSS JOIN LATERAL ("""
    + STARTABLE_IN_WINDOW
    + ") AS s)"
    + _CHOSEN
    + _TAKEN
    + _RESULT.replace(
        "SHORT",
        """ARRAY(
    SELECT DISTINCT l.job_name FROM lane AS l CROSS JOIN LATERAL ("""
        + DUE_IN_LANE.replace("KEYED", "NOT NULL")
        + """ OFFSET :window - 1 LIMIT 1) AS last
    WHERE (SELECT count(*) FROM found AS f WHERE f.job_name = l.job_name AND f.priority <= l.priority) < l.max_rows)""",
    ),
    {**_BINDS, "limits": INTS, "window": INT},
    _COLUMNS,
)

CLAIM_HEADS = Statement(
    HEADS_OF_KEYS
    + """, found AS MATERIALIZED (
    SELECT DISTINCT c.place, c.id, c.job_name, c.priority, c.run_at FROM head AS c WHERE """
    + STARTABLE_HEAD
    + ")"
    + _CHOSEN
    + _TAKEN
    + _RESULT.replace("SHORT", "CAST(NULL AS text[])"),
    {**_BINDS, "keys": TEXTS},
    _COLUMNS,
)


class KeyedClaim(NamedTuple):
    """The started jobs, with payloads of at most 64 KiB. `short_names` are those of which too few were found, while
    there may be more past their windows."""

    jobs: list[ClaimedJob]
    short_names: list[str]


def claim_keyed(
    conn: Connection,
    /,
    tables: Tables,
    *,
    names: Collection[str],
    limit: int,
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
    window: int = WINDOW,
    whole: bool = False,
) -> KeyedClaim:
    """Start at most `limit` of the jobs with mutex keys that can start, best first, looked for among the first
    `window` due ones of each name and priority.

    One statement, and another when a job got a part of its keys only; it takes no keys of a name that is not given.
    `lease` in seconds. `whole` is for a connection in autocommit: DataError instead of that other statement, and
    nothing is claimed.
    """
    if limit <= 0 or not names:
        return KeyedClaim([], [])
    window = max(window, limit)
    more = {"limits": [limit] * len(names), "window": window, "whole": whole}
    return _claim(conn, tables, CLAIM_IN_WINDOW, names, limit, lock_token, locked_by, lease, more)


def claim_heads(
    conn: Connection,
    /,
    tables: Tables,
    *,
    keys: Sequence[str],
    names: Collection[str],
    limit: int,
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
    whole: bool = False,
) -> list[ClaimedJob]:
    """Start at most `limit` of the jobs that are first in the lines of these keys, of these names and can start.

    A few index probes per key, whatever else waits. Like `claim_keyed` otherwise.
    """
    if limit <= 0 or not names or not keys:
        return []
    more = {"keys": list(keys), "whole": whole}
    return _claim(conn, tables, CLAIM_HEADS, names, limit, lock_token, locked_by, lease, more).jobs


def _claim(
    conn: Connection,
    tables: Tables,
    statement: Statement,
    names: Collection[str],
    limit: int,
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
    more: dict[str, Any],
) -> KeyedClaim:
    parameters = {
        "names": sorted(names),
        "max_rows": limit,
        "lock_token": lock_token,
        "locked_by": locked_by,
        "lease_ms": to_ms(seconds(lease, "lease")),
        "inline_bytes": INLINE_BYTES,
        **more,
    }
    began = time.monotonic()
    rows = conn.execute(statement.on(tables), parameters).all()
    took = time.monotonic() - began
    *_, lost, short_names = rows[0]
    if lost:
        conn.execute(PUT_BACK.on(tables), {"ids": lost, "lock_token": lock_token})
    jobs = [ClaimedJob._make((*row[:6], distinct_keys(row[6]), *row[7:-2])) for row in rows if row[0] is not None]
    if jobs and took > LONG_WAIT * seconds(lease, "lease"):
        renew_leases(conn, tables, jobs=jobs, lease=lease)
    return KeyedClaim(jobs, short_names or [])
