"""Finishing writes: complete, retry, fail, release, and the marks and renewals of a job that still runs.

Each is guarded by (id, lock token, running), says in its result which jobs it changed, and can be repeated: a second
time it changes nothing. Each frees the keys held under the lock whether or not the job still matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, BIGS, INT, TEXT, TEXTS, Statement, Types
from sqlane_sa.store.locks import PAIRS, RUNNING, Locked, free_keys, linger_keys, lock_holds, lock_running, pairs
from sqlane_sa.store.tuning import IDLE_LIMIT, idle_ms
from sqlane_sa.values.duration import optional_seconds, seconds, to_ms
from sqlane_sa.values.failure import error_json

UNLOCK = "lock_token = NULL, locked_by = NULL, locked_until = NULL, updated_at = statement_timestamp()"

RENEW = Statement(
    """
UPDATE {jobs} AS j
SET locked_until = statement_timestamp() + CAST(:lease_ms AS bigint) * interval '1 millisecond'
WHERE j.id = ANY(ARRAY(SELECT j.id FROM """
    + RUNNING.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
    + """))
RETURNING j.id""",
    PAIRS | {"lease_ms": BIG},
    {"id": TEXT},
)

FIND_HELD = Statement(
    """
SELECT j.id FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS text[])) AS i(id, lock_token)
CROSS JOIN LATERAL (SELECT h.id FROM {jobs} AS h
    WHERE h.id = i.id AND h.lock_token = i.lock_token AND coalesce(h.status, '') = 'running' LIMIT 1) AS j""",
    PAIRS,
    {"id": TEXT},
)

MARK_TIMED_OUT = Statement(
    """
UPDATE {jobs} AS j SET timed_out_at = statement_timestamp(), updated_at = statement_timestamp()
WHERE j.id = ANY(ARRAY(SELECT j.id FROM """
    + RUNNING.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
    + """)) AND j.timed_out_at IS NULL
RETURNING j.id""",
    PAIRS,
    {"id": TEXT},
)

# Shared with the completions of a turn, which lock nothing first.
END_TIMES = """statement_timestamp() AS finished_at,
           statement_timestamp() + j.completed_retention_ms * interval '1 millisecond' AS expires_at"""
EMPTYING = """), completed AS (
    SELECT id FROM kept UNION ALL SELECT id FROM dropped
), emptied AS (
    DELETE FROM {payloads} WHERE id = ANY(ARRAY(SELECT id FROM completed))
)"""

# A retention of 0 deletes the row at once, and one of NULL keeps it for ever. The rows are locked, so that their
# places (ctid) stand still; one that somebody has changed since the statement began is at a place where the statement
# does not see it, and is left out of `completed`.
COMPLETING = (
    """
locked AS MATERIALIZED (
    SELECT j.ctid, j.id, j.completed_retention_ms, """
    + END_TIMES
    + """
    FROM """
    + RUNNING.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
    + """
), kept AS (
    UPDATE {jobs} AS j SET status = 'completed', attempts = j.attempts + 1, finished_at = l.finished_at,
        expires_at = l.expires_at, timed_out_at = NULL, """
    + UNLOCK
    + """
    FROM locked AS l
    WHERE j.ctid = l.ctid AND l.completed_retention_ms IS DISTINCT FROM 0
    RETURNING j.id
), dropped AS (
    DELETE FROM {jobs} WHERE id = ANY(ARRAY(SELECT id FROM locked WHERE completed_retention_ms = 0)) RETURNING id
"""
    + EMPTYING
)

COMPLETE = Statement("WITH" + COMPLETING + "\nSELECT id FROM completed", PAIRS, {"id": TEXT})
COMPLETE_AND_END = Statement(
    "WITH" + COMPLETING + "\nSELECT id, " + IDLE_LIMIT + " AS idle_limit FROM completed",
    PAIRS | {"idle_ms": INT},
    {"id": TEXT, "idle_limit": TEXT},
)

# Back in the line of its keys, at its new time.
_PENDING_AGAIN = (
    """
WITH input AS (
    SELECT i.id, CAST(i.error AS jsonb) AS error,
           -- A delay of NULL keeps the job's time, and with it its place in the lines of its keys.
           date_trunc('milliseconds', statement_timestamp() + i.delay_ms * interval '1 millisecond') AS run_at
    FROM unnest(CAST(:ids AS text[]), CAST(:delays_ms AS bigint[]), CAST(:errors AS text[]))
         AS i(id, delay_ms, error)
), changed AS (
    UPDATE {jobs} AS j SET status = 'pending', run_at = coalesce(i.run_at, j.run_at), COUNTED
        started_at = NULL, timed_out_at = NULL, """
    + UNLOCK
    + """
    FROM input AS i WHERE j.id = i.id
    RETURNING j.id, j.run_at, j.mutex_keys
), waiting AS (
    INSERT INTO {waits} (mutex_key, run_at, job_id)
    SELECT k.mutex_key, c.run_at, c.id FROM changed AS c CROSS JOIN LATERAL unnest(c.mutex_keys) AS k(mutex_key)
    WHERE k.mutex_key IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id FROM changed"""
)
_PENDING_BINDS: Types = {"ids": TEXTS, "delays_ms": BIGS, "errors": TEXTS}

RETRY = Statement(
    _PENDING_AGAIN.replace("COUNTED", "attempts = j.attempts + 1, last_error = i.error,"), _PENDING_BINDS, {"id": TEXT}
)
RELEASE = Statement(_PENDING_AGAIN.replace("COUNTED", ""), _PENDING_BINDS, {"id": TEXT})
STALL = Statement(
    _PENDING_AGAIN.replace("COUNTED", "stalls = j.stalls + 1, last_error = i.error,"), _PENDING_BINDS, {"id": TEXT}
)


UNKNOWN_KEYS = ("?",)
"""Of a lock whose job may have keys: they are looked for. Of a job known to have none they are not."""


class RetryWrite(NamedTuple):
    """`delay` and `linger` in seconds; `error` a JSON-safe mapping, an exception, a text or None; `linger` None frees
    the keys."""

    id: str
    lock_token: str
    delay: float
    error: object
    mutex_keys: Sequence[str] | None = UNKNOWN_KEYS
    linger: float | None = None


class ReleaseWrite(NamedTuple):
    """`delay` and `linger` in seconds; `delay` None keeps the job's time, `linger` None frees the keys."""

    id: str
    lock_token: str
    delay: float | None
    linger: float | None
    mutex_keys: Sequence[str] | None = UNKNOWN_KEYS


def renew_leases(conn: Connection, /, tables: Tables, *, jobs: Sequence[Locked], lease: float | timedelta) -> list[str]:
    """Extend the leases of running jobs to `lease` seconds from now; the ids renewed.

    A row locked by another transaction is skipped: it is being finished or recovered, and a wait here would cost the
    other jobs their leases.
    """
    if not jobs:
        return []
    parameters = {**pairs(jobs), "lease_ms": to_ms(seconds(lease, "lease"))}
    return list(conn.execute(RENEW.on(tables), parameters).scalars())


def find_held(conn: Connection, /, tables: Tables, *, jobs: Sequence[Locked]) -> list[str]:
    """Ids of the jobs that still run under their tokens. Locks nothing."""
    return list(conn.execute(FIND_HELD.on(tables), pairs(jobs)).scalars()) if jobs else []


def mark_timed_out(conn: Connection, /, tables: Tables, *, jobs: Sequence[Locked]) -> list[str]:
    """Mark running jobs as stuck: they keep lock and keys until their handlers return. The ids newly marked.

    A row locked by another transaction is skipped: most likely that one finishes the job.
    """
    return list(conn.execute(MARK_TIMED_OUT.on(tables), pairs(jobs)).scalars()) if jobs else []


def complete(
    conn: Connection, /, tables: Tables, *, jobs: Sequence[Locked], idle_limit: float | None = None
) -> list[str]:
    """Complete running jobs, one attempt more, payloads deleted, kept for their retention. The ids changed.

    With an `idle_limit`, in seconds, the server ends a session that lets the transaction wait for longer from now on.
    """
    if not jobs:
        return []
    if idle_limit is None:
        changed = complete_unlocked(conn, tables, jobs=jobs)
    else:
        parameters = {**pairs(jobs), "idle_ms": idle_ms(idle_limit)}
        changed = [row[0] for row in conn.execute(COMPLETE_AND_END.on(tables), parameters).all()]
    if len(changed) < len(jobs):
        # Locked by somebody, or lost. The wait ends before the statement that takes the times.
        held = lock_running(conn, tables, [job for job in jobs if job.id not in set(changed)])
        rest = [job for job in jobs if (job.id, job.lock_token) in held]
        changed += conn.execute(COMPLETE.on(tables), pairs(rest)).scalars() if rest else []
    free_keys(conn, tables, jobs)
    return changed


def complete_unlocked(conn: Connection, /, tables: Tables, *, jobs: Sequence[Locked]) -> list[str]:
    """`complete` for jobs without keys, in one statement that waits for nobody: rows that another transaction has
    locked are passed over. The ids changed."""
    return [row[0] for row in conn.execute(COMPLETE.on(tables), pairs(jobs)).all()]


def retry(
    conn: Connection,
    /,
    tables: Tables,
    *,
    job: Locked,
    delay: float | timedelta = 0,
    error: object = None,
    linger: float | timedelta | None = None,
) -> bool:
    """Set one running job back to pending after `delay` seconds, one attempt more, error kept. Whether it changed.

    Its keys are freed, or stay held for `linger` seconds because its handler still runs.
    """
    keys = getattr(job, "mutex_keys", UNKNOWN_KEYS)
    wait, kept = seconds(delay, "delay"), optional_seconds(linger, "linger")
    write = RetryWrite(job.id, job.lock_token, wait, error, keys, kept)
    return bool(retry_many(conn, tables, retries=[write]))


def retry_many(conn: Connection, /, tables: Tables, *, retries: Sequence[RetryWrite]) -> list[str]:
    """`retry` for many jobs at once; the ids changed."""
    held = lock_running(conn, tables, retries)
    rows = [write for write in retries if (write.id, write.lock_token) in held]
    changed = set_pending(conn, tables, RETRY, [(write.id, write.delay, write.error) for write in rows])
    _let_go(conn, tables, retries)
    return changed


def release(
    conn: Connection,
    /,
    tables: Tables,
    *,
    job: Locked,
    delay: float | timedelta | None = 0,
    linger: float | timedelta | None = None,
) -> bool:
    """Set one running job back to pending after `delay` seconds without an attempt used. Whether it changed.

    A `delay` of None keeps its time, and so its place in the lines of its keys, for a job that was not started. Its
    keys are freed, or stay held for `linger` seconds because its handler still runs.
    """
    keys = getattr(job, "mutex_keys", UNKNOWN_KEYS)
    wait, kept = optional_seconds(delay, "delay"), optional_seconds(linger, "linger")
    write = ReleaseWrite(job.id, job.lock_token, wait, kept, keys)
    return bool(release_many(conn, tables, releases=[write]))


def release_many(conn: Connection, /, tables: Tables, *, releases: Sequence[ReleaseWrite]) -> list[str]:
    """`release` for many jobs at once; the ids changed."""
    held = lock_running(conn, tables, releases)
    rows = [write for write in releases if (write.id, write.lock_token) in held]
    changed = set_pending(conn, tables, RELEASE, [(write.id, write.delay, None) for write in rows])
    _let_go(conn, tables, releases)
    return changed


def _let_go(conn: Connection, tables: Tables, writes: Sequence[RetryWrite | ReleaseWrite]) -> None:
    """Free the keys or let them linger; also when the job is not ours any more (this write came before, or it was
    recovered): its handler still runs."""
    lingers = sorted({write.linger for write in writes if write.linger})
    if lingers:
        # All at once, before they are changed in groups: keys are locked in one order everywhere.
        lock_holds(conn, tables, writes)
    for linger in lingers:
        linger_keys(conn, tables, [write for write in writes if write.linger == linger], to_ms(linger))
    free_keys(conn, tables, [write for write in writes if not write.linger])


def set_pending(
    conn: Connection,
    tables: Tables,
    statement: Statement,
    rows: Sequence[tuple[str, float | None, object]],
) -> list[str]:
    """Run RETRY, RELEASE or STALL for `(id, delay in seconds, error)` of jobs that this transaction has locked."""
    if not rows:
        return []
    parameters = {
        "ids": [id_ for id_, _, _ in rows],
        "delays_ms": [None if delay is None else to_ms(delay) for _, delay, _ in rows],
        "errors": [error_json(error) for _, _, error in rows],
    }
    return list(conn.execute(statement.on(tables), parameters).scalars())
