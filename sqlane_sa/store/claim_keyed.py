"""Claim of jobs with mutex keys: in one statement, for the ordinary case.

What `find_candidates` and `claim` do in six round trips. All parts of it see one snapshot, and the locks see what is
there now; the differences between the two decide what may start:

- The candidates can start by the snapshot: their keys are free, and nobody who is due is ahead in a line of theirs.
- The lock is taken without waiting, on rows that are still pending, due, and where they were. A job that another
  worker has claimed and tried again since the snapshot is behind others now. One that was claimed and handed back with
  its time is where it was, and whoever was ahead of it then would have been so in the snapshot.
- The keys are taken by the unique index, which knows no snapshot: a key that somebody has taken since stays his, one
  whose linger has begun too, and one that was freed is free. In ascending order, for all jobs at once, so that two
  claims cannot wait for each other in a circle. Two candidates share a key only where a place in its line is missing:
  the older gets it.
- Only jobs that got all their keys start. What the others got cannot be given back by the same statement, which does
  not see its own rows: they are returned, and put back before the transaction ends.

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
from sqlane_sa.statement import BIG, INT, INTS, TEXT, TEXTS, Statement, Types
from sqlane_sa.store.candidates import DUE_IN_LANE, LANES, STARTABLE, STARTABLE_IN_WINDOW, WINDOW
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
    SELECT f.id, f.run_at FROM (
        SELECT id, job_name, priority, run_at,
               row_number() OVER (PARTITION BY job_name, priority ORDER BY run_at, id) AS turn FROM found) AS f
    ORDER BY f.priority, f.turn, f.run_at, f.id LIMIT :max_rows
)"""

# The lateral with FOR UPDATE cannot be pulled up into a join, and what it waited for is judged anew. How many keys each
# job lacks is counted in one pass: without hash and merge joins, anything else compares each with each; and without an
# aggregate of its own for the many jobs with one key.
#
# Places in the lines are only ever inserted and deleted, so that one of the snapshot is where it was; a DELETE with
# USING makes a row of each row that it joins, which costs more than the deletion. A job that was handed back since the
# snapshot leaves its new place behind: without its pending job it counts nothing, and it is swept.
_TAKEN = (
    """, locked AS MATERIALIZED (
    SELECT j.id, j.run_at, j.mutex_keys FROM chosen AS c CROSS JOIN LATERAL (
        SELECT j.id, j.run_at, j.mutex_keys FROM {jobs} AS j
        WHERE j.id = c.id AND coalesce(j.status, '') = 'pending'
          AND j.run_at = c.run_at AND j.run_at <= statement_timestamp()
        FOR UPDATE SKIP LOCKED) AS j
), acquired AS (
    INSERT INTO {mutexes} AS m (mutex_key, job_id, lock_token, held_until, created_at)
    SELECT DISTINCT ON (k.mutex_key) k.mutex_key, l.id, :lock_token, NULL, statement_timestamp()
    FROM locked AS l CROSS JOIN LATERAL unnest(l.mutex_keys) AS k(mutex_key)
    WHERE k.mutex_key IS NOT NULL ORDER BY k.mutex_key, l.run_at, l.id
    ON CONFLICT (mutex_key) DO UPDATE
    SET job_id = excluded.job_id, lock_token = excluded.lock_token, held_until = NULL, created_at = excluded.created_at
    -- Immutable functions only here (Citus): the time comes along in the row.
    WHERE m.held_until <= excluded.created_at
    RETURNING job_id
), counted AS MATERIALIZED (
    SELECT n.id, sum(n.lacks) AS lacks, count(*) - 1 AS got, max(n.run_at) AS run_at, max(n.mutex_keys) AS mutex_keys
    FROM (
        SELECT l.id, l.run_at, l.mutex_keys,
               CASE WHEN array_ndims(l.mutex_keys) = 1 AND cardinality(l.mutex_keys) = 1
                         AND l.mutex_keys[array_lower(l.mutex_keys, 1)] IS NOT NULL THEN 1
                    ELSE (SELECT CAST(count(DISTINCT k.mutex_key) AS integer)
                          FROM unnest(l.mutex_keys) AS k(mutex_key)) END AS lacks
        FROM locked AS l
        UNION ALL SELECT a.job_id, NULL, NULL, -1 FROM acquired AS a) AS n
    GROUP BY n.id
), started AS ("""
    + SET_RUNNING.replace("ROWS", "id = ANY(ARRAY(SELECT id FROM counted WHERE lacks = 0))")
    + """
), off AS (
    DELETE FROM {waits} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM counted AS c CROSS JOIN LATERAL unnest(c.mutex_keys) AS k(mutex_key) CROSS JOIN LATERAL (
            SELECT w.ctid FROM {waits} AS w
            WHERE w.mutex_key = k.mutex_key AND w.run_at = c.run_at AND w.job_id = c.id LIMIT 1) AS p
        WHERE c.lacks = 0))
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
FROM (SELECT nullif(ARRAY(SELECT id FROM counted WHERE lacks > 0 AND got > 0), '{}') AS lost,
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
}
_COLUMNS: Types = {**CLAIMED, "payload_text": TEXT, "lost": TEXTS, "short_names": TEXTS}

# A lane is short when its window is full, and too few of it and the better ones can start: there may be more behind.
CLAIM_IN_WINDOW = Statement(
    LANES.replace("KEYED", "NOT NULL")
    + """, found AS MATERIALIZED (
    SELECT s.id, l.job_name, l.priority, s.run_at FROM lane AS l CROSS JOIN LATERAL ("""
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
    SELECT DISTINCT c.id, c.job_name, c.priority, c.run_at FROM head AS c WHERE """
    + STARTABLE
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
) -> KeyedClaim:
    """Start at most `limit` of the jobs with mutex keys that can start, best first, looked for among the first
    `window` due ones of each name and priority.

    One statement, and another when a job got a part of its keys only; it takes no keys of a name that is not given.
    `lease` in seconds.
    """
    if limit <= 0 or not names:
        return KeyedClaim([], [])
    window = max(window, limit)
    more = {"limits": [limit] * len(names), "window": window}
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
) -> list[ClaimedJob]:
    """Start at most `limit` of the jobs that are first in the lines of these keys, of these names and can start.

    A few index probes per key, whatever else waits. Like `claim_keyed` otherwise.
    """
    if limit <= 0 or not names or not keys:
        return []
    more = {"keys": list(keys)}
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
