"""The two halves that all finishing writes share: locking running jobs by their tokens, and freeing their keys.

Locks are taken in one order everywhere: rows of jobs by id, then rows of mutexes by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, Row

from sqlane_sa.schema import Tables
from sqlane_sa.statement import BIG, INT, TEXT, TEXTS, Statement


class Locked(Protocol):
    """A job as a worker holds it: `ClaimedJob`, `JobLock`, or anything with both attributes."""

    @property
    def id(self) -> str: ...

    @property
    def lock_token(self) -> str: ...


PAIRS = {"ids": TEXTS, "tokens": TEXTS}

# The lateral with FOR NO KEY UPDATE cannot be pulled up into a join: one index probe per job, in the order of the ids.
# Not FOR UPDATE, here and in the claims: a foreign key of the application's to its job locks the row FOR KEY SHARE, in
# a handler's transaction for as long as that takes, and its lease could not be renewed.
#
# coalesce() keeps the planner from the partial index of what runs. Where ANALYZE has found nothing running, that index
# looks like an empty page, cheaper than the primary key; the plan stays, and each probe reads all of what runs, and of
# what has run since the last vacuum.
RUNNING = """
(SELECT id, lock_token FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS text[])) AS i(id, lock_token) ORDER BY id) AS i
CROSS JOIN LATERAL (
    SELECT j.ctid, j.id, j.lock_token, j.job_name, j.attempts, j.max_attempts, j.failure_job, j.mutex_keys,
           j.completed_retention_ms, j.failed_retention_ms
    FROM {jobs} AS j
    WHERE j.id = i.id AND j.lock_token = i.lock_token AND coalesce(j.status, '') = 'running' FOR NO KEY UPDATE) AS j"""

LOCK_RUNNING = Statement(
    """
SELECT j.id, j.lock_token, j.job_name, j.attempts, j.max_attempts, j.failure_job, j.mutex_keys, j.failed_retention_ms
FROM """
    + RUNNING,
    PAIRS,
    {
        "id": TEXT,
        "lock_token": TEXT,
        "job_name": TEXT,
        "attempts": INT,
        "max_attempts": INT,
        "failure_job": TEXT,
        "mutex_keys": TEXTS,
        "failed_retention_ms": BIG,
    },
)

# LIMIT ALL keeps the probes from being pulled up into a join: planned while few keys are held, that one would compare
# each job with each key, and the plan stays.
_HELD = """
ARRAY(SELECT m.mutex_key FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS text[])) AS i(id, lock_token)
    CROSS JOIN LATERAL (
        SELECT h.mutex_key FROM {mutexes} AS h WHERE h.job_id = i.id AND h.lock_token = i.lock_token LIMIT ALL) AS m
    ORDER BY m.mutex_key)"""

# Locked by key first: a late finish of an old lock and its recovery may meet on the same two keys.
_LOCK_HOLDS = "SELECT mutex_key FROM {mutexes} WHERE mutex_key = ANY(" + _HELD + ") ORDER BY mutex_key FOR UPDATE"
LOCK_HOLDS = Statement(_LOCK_HOLDS, PAIRS, {"mutex_key": TEXT})

_HOLDS = """
    SELECT m.mutex_key, m.job_id, m.lock_token
    FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS text[])) AS i(id, lock_token) CROSS JOIN LATERAL (
        SELECT h.mutex_key, h.job_id, h.lock_token FROM {mutexes} AS h
        WHERE h.job_id = i.id AND h.lock_token = i.lock_token LOCK) AS m"""

# What is there, without what can be locked at once. A row that another transaction changes in this very moment is
# taken for locked, too.
FIND_LOCKED = Statement(
    "WITH free_jobs AS MATERIALIZED (SELECT j.id, j.lock_token FROM "
    + RUNNING.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
    + "), free_keys AS MATERIALIZED ("
    + _HOLDS.replace("LOCK)", "FOR UPDATE SKIP LOCKED)")
    + """
)
(SELECT j.id, j.lock_token FROM """
    + RUNNING.replace("FOR NO KEY UPDATE", "LIMIT 1")
    + " EXCEPT SELECT id, lock_token FROM free_jobs) UNION (SELECT k.job_id, k.lock_token FROM ("
    + _HOLDS.replace("LOCK)", "LIMIT ALL)")
    + " EXCEPT SELECT mutex_key, job_id, lock_token FROM free_keys) AS k)",
    PAIRS,
    {"id": TEXT, "lock_token": TEXT},
)

# Somebody may wait for a freed key without knowing that it is free: wake like an enqueue, and only then.
WAKING = """woken AS (
    SELECT pg_notify(:channel, '')
    WHERE EXISTS (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp())
      AND EXISTS (SELECT FROM freed AS f CROSS JOIN LATERAL (
                      SELECT FROM {waits} AS w WHERE w.mutex_key = f.mutex_key LIMIT 1) AS w)
)"""

# Locked in the order of the keys, and judged anew after a wait: what has been taken over since is left alone. With what
# it then holds, the statement deletes.
FREE = Statement(
    """
WITH held AS MATERIALIZED (
    SELECT h.mutex_key FROM (
        SELECT m.mutex_key, i.id, i.lock_token
        FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS text[])) AS i(id, lock_token) CROSS JOIN LATERAL (
            SELECT h.mutex_key FROM {mutexes} AS h
            WHERE h.job_id = i.id AND h.lock_token = i.lock_token LIMIT ALL) AS m
        ORDER BY m.mutex_key) AS i
    CROSS JOIN LATERAL (
        SELECT h.mutex_key FROM {mutexes} AS h
        WHERE h.mutex_key = i.mutex_key AND h.job_id = i.id AND h.lock_token = i.lock_token FOR UPDATE) AS h
), freed AS (
    DELETE FROM {mutexes} WHERE mutex_key = ANY(ARRAY(SELECT mutex_key FROM held)) RETURNING mutex_key
), """
    + WAKING
    + "\nSELECT FROM woken",
    PAIRS | {"channel": TEXT},
)

LINGER = Statement(
    """
UPDATE {mutexes} AS m
SET held_until = statement_timestamp() + CAST(:linger_ms AS bigint) * interval '1 millisecond'
FROM unnest(CAST(:ids AS text[]), CAST(:tokens AS text[])) AS i(id, lock_token)
WHERE m.mutex_key = ANY(CAST(:keys AS text[])) AND m.job_id = i.id AND m.lock_token = i.lock_token
  AND m.held_until IS NULL""",
    PAIRS | {"keys": TEXTS, "linger_ms": BIG},
)


def pairs(jobs: Iterable[Locked]) -> dict[str, list[str]]:
    held = sorted({(job.id, job.lock_token) for job in jobs})
    return {"ids": [id_ for id_, _ in held], "tokens": [token for _, token in held]}


def lock_running(conn: Connection, tables: Tables, jobs: Sequence[Locked]) -> dict[tuple[str, str], Row[Any]]:
    """Lock the jobs that still run under their tokens; (id, token) to row.

    The wait for a lock ends here, so that the write that follows takes its times from after the wait.
    """
    rows = conn.execute(LOCK_RUNNING.on(tables), pairs(jobs)) if jobs else ()
    return {(row.id, row.lock_token): row for row in rows}


def find_locked(conn: Connection, /, tables: Tables, *, jobs: Iterable[Locked]) -> set[tuple[str, str]]:
    """(id, token) of the running jobs whose rows, or whose keys, another transaction has locked.

    Waits for nobody; the rows and keys of the others are locked for the rest of this transaction.
    """
    return {(row.id, row.lock_token) for row in conn.execute(FIND_LOCKED.on(tables), pairs(jobs))}


def free_keys(conn: Connection, tables: Tables, jobs: Iterable[Locked]) -> None:
    """Free the keys held under these locks, whether or not the jobs still run under them."""
    held = pairs(_keyed(jobs))
    if held["ids"]:
        conn.execute(FREE.on(tables), {**held, "channel": tables.channel}).close()


def linger_keys(conn: Connection, tables: Tables, jobs: Iterable[Locked], linger_ms: int) -> None:
    """Keep the keys held under these locks for `linger_ms` more, without their jobs; what lingers stays as it is."""
    jobs = _keyed(jobs)
    keys = lock_holds(conn, tables, jobs)
    if keys:
        conn.execute(LINGER.on(tables), {**pairs(jobs), "keys": keys, "linger_ms": linger_ms})


def lock_holds(conn: Connection, tables: Tables, jobs: Iterable[Locked]) -> list[str]:
    """Lock what is held under these locks, in the order of the keys; the keys."""
    held = pairs(_keyed(jobs))
    return list(conn.execute(LOCK_HOLDS.on(tables), held).scalars()) if held["ids"] else []


def _keyed(jobs: Iterable[Locked]) -> list[Locked]:
    """Those that may hold keys: a claimed job says so itself, a bare lock does not."""
    return [job for job in jobs if getattr(job, "mutex_keys", True)]
