"""Claim: due jobs become running, with a lock token and a lease.

`claim` is the general way: lock the candidates, read which keys are busy, let the caller pick, take the keys, start.
`claim_plain` is the short way for jobs without keys: one statement that finds, locks, starts and reads the payloads.

Rows are locked with SKIP LOCKED and by a list of ids: `id IN (SELECT ... LIMIT n ... SKIP LOCKED)` runs the subquery
again for each row under a nested loop and claims them all, and a join with it reads the whole primary key under a
generic plan. Keys are inserted in ascending order, so that two claims cannot wait for each other in a circle.
A transaction that frees keys must therefore not claim keyed jobs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables, moment
from sqlane_sa.statement import BIG, INT, INTS, SMALL, TEXT, TEXTS, Statement, Types
from sqlane_sa.store.claimed import CLAIMED, CLAIMED_WITH_PAYLOADS, IN_ORDER, READ_CLAIMED, WITH_PAYLOADS, claimed_jobs
from sqlane_sa.store.payloads import INLINE_BYTES
from sqlane_sa.store.reading import distinct_keys, readable
from sqlane_sa.values.duration import seconds, to_ms
from sqlane_sa.values.job import ClaimedJob


class DueJob(NamedTuple):
    """A locked candidate, as `pick` sees it. `mutex_keys` is None or a list of keys."""

    id: str
    name: str
    priority: int
    run_at: datetime
    mutex_keys: Sequence[str] | None


Pick = Callable[[Sequence[DueJob], Collection[str]], Iterable[DueJob]]

LOCK_DUE = Statement(
    f"""
SELECT id, job_name, priority, {readable("run_at")} AS run_at, mutex_keys FROM {{jobs}}
WHERE id = ANY(CAST(:ids AS text[])) AND coalesce(status, '') = 'pending' AND run_at <= statement_timestamp()
FOR NO KEY UPDATE SKIP LOCKED""",
    {"ids": TEXTS},
    {"id": TEXT, "job_name": TEXT, "priority": SMALL, "run_at": moment(), "mutex_keys": TEXTS},
)

# The order is that of the column, as in all statements that lock keys: an array's is that of the database. The time
# comes along: ON CONFLICT ... WHERE may hold immutable functions only (Citus), and it must be the one by
# which the keys were judged free.
READ_BUSY = Statement(
    """
SELECT t.now, m.mutex_key FROM (SELECT statement_timestamp() AS now) AS t LEFT JOIN {mutexes} AS m
ON m.mutex_key = ANY(CAST(:keys AS text[])) AND (m.held_until IS NULL OR m.held_until > statement_timestamp())""",
    {"keys": TEXTS},
    {"now": moment(), "mutex_key": TEXT},
)

ACQUIRE = Statement(
    """
INSERT INTO {mutexes} AS m (mutex_key, job_id, lock_token, held_until, created_at)
SELECT i.mutex_key, i.job_id, :lock_token, NULL, statement_timestamp()
FROM unnest(CAST(:keys AS text[]), CAST(:ids AS text[])) AS i(mutex_key, job_id) ORDER BY i.mutex_key COLLATE "C"
ON CONFLICT (mutex_key) DO UPDATE
SET job_id = excluded.job_id, lock_token = excluded.lock_token, held_until = NULL, created_at = excluded.created_at
WHERE m.held_until <= :now
RETURNING mutex_key, job_id""",
    {"keys": TEXTS, "ids": TEXTS, "lock_token": TEXT, "now": moment()},
    {"mutex_key": TEXT, "job_id": TEXT},
)

PUT_BACK = Statement(
    "DELETE FROM {mutexes} WHERE job_id = ANY(CAST(:ids AS text[])) AND lock_token = :lock_token",
    {"ids": TEXTS, "lock_token": TEXT},
)

SET_RUNNING = f"""
UPDATE {{jobs}} SET status = 'running', lock_token = :lock_token, locked_by = :locked_by,
    locked_until = statement_timestamp() + CAST(:lease_ms AS bigint) * interval '1 millisecond',
    started_at = statement_timestamp(), timed_out_at = NULL, updated_at = statement_timestamp()
WHERE ROWS
RETURNING {READ_CLAIMED}"""

START = Statement(
    SET_RUNNING.replace("ROWS", "id = ANY(CAST(:ids AS text[]))"),
    {"ids": TEXTS, "lock_token": TEXT, "locked_by": TEXT, "lease_ms": BIG},
    CLAIMED,
)

LEAVE_LINES = Statement(
    """
DELETE FROM {waits} AS w USING {jobs} AS j CROSS JOIN LATERAL unnest(j.mutex_keys) AS k(mutex_key)
WHERE j.id = ANY(CAST(:ids AS text[])) AND w.mutex_key = k.mutex_key AND w.run_at = j.run_at AND w.job_id = j.id""",
    {"ids": TEXTS},
)

# Each lane is one index scan that begins at the best due job, or after the place it is told, and stops at its limit.
# The rows are locked, so that their places (ctid) stand still; the place of one that somebody has changed since the
# statement began is not seen by it, and that job is left for the next claim.
STARTING = (
    """
picked AS MATERIALIZED (
    SELECT c.ctid FROM unnest(CAST(:names AS text[]), CAST(:priorities AS integer[]), CAST(:limits AS integer[]),
                              CAST(:after_times AS timestamptz[]), CAST(:after_ids AS text[]))
        AS l(job_name, priority, max_rows, after_time, after_id) CROSS JOIN LATERAL (
        SELECT j.ctid FROM {jobs} AS j
        WHERE j.status = 'pending' AND j.mutex_keys IS NULL AND j.job_name = l.job_name AND j.priority = l.priority
          AND j.run_at <= statement_timestamp() AND (j.run_at, j.id) > (l.after_time, l.after_id)
        ORDER BY j.run_at, j.id LIMIT l.max_rows FOR NO KEY UPDATE SKIP LOCKED) AS c
), started AS ("""
    + SET_RUNNING.replace("ROWS", "ctid = ANY(ARRAY(SELECT ctid FROM picked))")
    + ")"
)
STARTING_BINDS: Types = {
    "names": TEXTS,
    "priorities": INTS,
    "limits": INTS,
    "after_times": TEXTS,
    "after_ids": TEXTS,
    "lock_token": TEXT,
    "locked_by": TEXT,
    "lease_ms": BIG,
    "inline_bytes": INT,
}

CLAIM_PLAIN = Statement("WITH" + STARTING + WITH_PAYLOADS + IN_ORDER, STARTING_BINDS, CLAIMED_WITH_PAYLOADS)


def pick_free(rows: Sequence[DueJob], busy_keys: Collection[str]) -> list[DueJob]:
    """Every row none of whose keys is busy or taken by a row before it."""
    taken = set(busy_keys)
    picked = []
    for row in rows:
        if taken.isdisjoint(row.mutex_keys or ()):
            taken.update(row.mutex_keys or ())
            picked.append(row)
    return picked


def claim(
    conn: Connection,
    /,
    tables: Tables,
    *,
    candidate_ids: Sequence[str],
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
    pick: Pick = pick_free,
) -> list[ClaimedJob]:
    """Start those of the candidates that are still pending and due, can be locked, are picked and get all their keys.

    `pick(rows, busy_keys)` gets the locked rows in the order of the candidates and returns those to start, in start
    order. `lease` in seconds. Returns the started jobs in that order, without payloads. Rows not started stay locked
    until the transaction ends.
    """
    rows = _lock_due(conn, tables, candidate_ids)
    keys = sorted({key for row in rows for key in row.mutex_keys or ()})
    now, busy = _read_busy(conn, tables, keys) if keys else (None, set[str]())
    chosen = _startable(rows, pick(rows, busy))
    if any(row.mutex_keys for row in chosen):
        chosen = _acquire(conn, tables, chosen, lock_token, now)
    if not chosen:
        return []
    parameters = {
        "ids": [row.id for row in chosen],
        "lock_token": lock_token,
        "locked_by": locked_by,
        "lease_ms": to_ms(seconds(lease, "lease")),
    }
    started = {job.id: job for job in claimed_jobs(conn.execute(START.on(tables), parameters))}
    if keys:
        conn.execute(LEAVE_LINES.on(tables), {"ids": [row.id for row in chosen if row.mutex_keys]})
    return [started[row.id] for row in chosen]


def claim_plain(
    conn: Connection,
    /,
    tables: Tables,
    *,
    lanes: Sequence[tuple[str, int, int]],
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
) -> list[ClaimedJob]:
    """Start the first due jobs without keys of each lane `(name, priority, limit in rows)`.

    One statement, which brings payloads of at most 64 KiB along (`payload_text`, else None). `lease` in seconds.
    Returns the started jobs by priority, run_at and id.
    """
    parameters = starting(lanes, {}, lock_token, locked_by, lease)
    return list(map(ClaimedJob._make, conn.execute(CLAIM_PLAIN.on(tables), parameters).all()))


def starting(
    lanes: Sequence[tuple[str, int, int]],
    after: Mapping[tuple[str, int], tuple[datetime, str]],
    lock_token: str,
    locked_by: str,
    lease: float | timedelta,
) -> dict[str, Any]:
    """The parameters of `STARTING`; `after` holds for some lanes (name, priority) the place to begin after."""
    places = [after.get((name, priority)) for name, priority, _ in lanes]
    return {
        "names": [lane[0] for lane in lanes],
        "priorities": [lane[1] for lane in lanes],
        "limits": [lane[2] for lane in lanes],
        "after_times": ["-infinity" if place is None else place[0].isoformat() for place in places],
        "after_ids": ["" if place is None else place[1] for place in places],
        "lock_token": lock_token,
        "locked_by": locked_by,
        "lease_ms": to_ms(seconds(lease, "lease")),
        "inline_bytes": INLINE_BYTES,
    }


def _lock_due(conn: Connection, tables: Tables, ids: Sequence[str]) -> list[DueJob]:
    if not ids:
        return []
    place = {id_: index for index, id_ in enumerate(ids)}
    rows = [DueJob._make(row) for row in conn.execute(LOCK_DUE.on(tables), {"ids": list(ids)})]
    rows = [row._replace(mutex_keys=distinct_keys(row.mutex_keys)) for row in rows]
    return sorted(rows, key=lambda row: place[row.id])


def _read_busy(conn: Connection, tables: Tables, keys: list[str]) -> tuple[datetime, set[str]]:
    rows = conn.execute(READ_BUSY.on(tables), {"keys": keys}).all()
    return rows[0].now, {row.mutex_key for row in rows if row.mutex_key is not None}


def _startable(rows: Sequence[DueJob], picked: Iterable[DueJob]) -> list[DueJob]:
    """What was picked: each once, only rows that are locked, and no two with a key in common."""
    locked = {row.id: row for row in rows}
    return pick_free([locked[id_] for id_ in dict.fromkeys(row.id for row in picked) if id_ in locked], ())


def _acquire(conn: Connection, tables: Tables, chosen: list[DueJob], lock_token: str, now: Any) -> list[DueJob]:
    """All keys of a job or none: a set of which another claim got a part first is put back."""
    pairs = sorted((key, row.id) for row in chosen for key in row.mutex_keys or ())
    parameters = {
        "keys": [key for key, _ in pairs],
        "ids": [id_ for _, id_ in pairs],
        "lock_token": lock_token,
        "now": now,
    }
    got = {(row.mutex_key, row.job_id) for row in conn.execute(ACQUIRE.on(tables), parameters)}
    lost = {id_ for key, id_ in pairs if (key, id_) not in got}
    if lost:
        conn.execute(PUT_BACK.on(tables), {"ids": sorted(lost), "lock_token": lock_token})
    return [row for row in chosen if row.id not in lost]
