"""Failed jobs: listed, counted where they pile up, and set back to pending when somebody has mended the cause."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from sqlane_sa.schema import Tables, moment
from sqlane_sa.statement import BIG, BOOL, INT, TEXT, TEXTS, Statement
from sqlane_sa.store.reading import readable
from sqlane_sa.values.duration import seconds, to_ms
from sqlane_sa.values.job import FailedEntry

# By the index of what failed, which has no times: all failed jobs of the names are read, but their errors, which may be
# large, only of those that are returned.
FIND_FAILED = Statement(
    f"""
SELECT j.id, j.job_name, j.attempts, j.max_attempts, j.stalls, {readable("j.finished_at")} AS finished_at,
       CAST(floor(extract(epoch FROM statement_timestamp() - {readable("j.finished_at")}) * 1000) AS bigint) AS age_ms,
       CAST(j.last_error AS text) AS last_error
FROM (SELECT id FROM {{jobs}} WHERE status = 'failed' AND (:every OR job_name = ANY(CAST(:names AS text[])))
      ORDER BY finished_at DESC NULLS LAST, id DESC LIMIT :max_rows) AS f
JOIN {{jobs}} AS j ON j.id = f.id
ORDER BY j.finished_at DESC NULLS LAST, j.id DESC""",
    {"names": TEXTS, "every": BOOL, "max_rows": INT},
    {
        "id": TEXT,
        "job_name": TEXT,
        "attempts": INT,
        "max_attempts": INT,
        "stalls": INT,
        "finished_at": moment(),
        "age_ms": BIG,
        "last_error": TEXT,
    },
)

FAILED_IDS = Statement(
    """
SELECT id FROM {jobs} WHERE status = 'failed' AND job_name = :name AND id > :after_id ORDER BY id LIMIT :max_rows""",
    {"name": TEXT, "after_id": TEXT, "max_rows": INT},
    {"id": TEXT},
)

# From name to name by the index of what failed, and the newest of each in the order of their ids.
COUNT_FAILED = Statement(
    """
WITH RECURSIVE names AS (
    (SELECT job_name FROM {jobs} WHERE status = 'failed' ORDER BY job_name, id LIMIT 1)
    UNION ALL
    SELECT n.job_name FROM names AS l CROSS JOIN LATERAL (
        SELECT j.job_name FROM {jobs} AS j WHERE j.status = 'failed' AND j.job_name > l.job_name
        ORDER BY j.job_name, j.id LIMIT 1) AS n
)
SELECT n.job_name, count(*) AS jobs FROM names AS n CROSS JOIN LATERAL (
    SELECT j.finished_at FROM {jobs} AS j WHERE j.status = 'failed' AND j.job_name = n.job_name
    ORDER BY j.job_name DESC, j.id DESC LIMIT :max_rows) AS f
WHERE f.finished_at > statement_timestamp() - CAST(:within_ms AS bigint) * interval '1 millisecond'
GROUP BY n.job_name ORDER BY n.job_name""",
    {"max_rows": INT, "within_ms": BIG},
    {"job_name": TEXT, "jobs": BIG},
)

# A row that another transaction has locked is being deleted or set back already. For coalesce() see `locks.RUNNING`.
RETRY_FAILED = Statement(
    """
WITH locked AS MATERIALIZED (
    SELECT id FROM {jobs} WHERE id = ANY(CAST(:ids AS text[])) AND coalesce(status, '') = 'failed'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE {jobs} SET status = 'pending', run_at = date_trunc('milliseconds', statement_timestamp()), attempts = 0,
        stalls = 0, started_at = NULL, finished_at = NULL, expires_at = NULL, updated_at = statement_timestamp()
    WHERE id = ANY(ARRAY(SELECT id FROM locked))
    RETURNING id, run_at, mutex_keys
), waiting AS (
    INSERT INTO {waits} (mutex_key, run_at, job_id)
    SELECT k.mutex_key, m.run_at, m.id FROM moved AS m CROSS JOIN LATERAL unnest(m.mutex_keys) AS k(mutex_key)
    WHERE k.mutex_key IS NOT NULL
    ON CONFLICT DO NOTHING
), woken AS (
    SELECT pg_notify(:channel, '') FROM (SELECT FROM {sleepers} WHERE asleep_until > statement_timestamp() LIMIT 1) AS s
)
SELECT id, (SELECT count(*) FROM woken) AS woken FROM moved ORDER BY id""",
    {"ids": TEXTS, "channel": TEXT},
    {"id": TEXT, "woken": BIG},
)


class FailedCount(NamedTuple):
    """How many jobs of a name have failed for good lately, counted up to a limit."""

    name: str
    jobs: int


def find_failed(
    conn: Connection, /, tables: Tables, *, limit: int, names: Collection[str] | None = None
) -> list[FailedEntry]:
    """The failed jobs (of these names) that are still kept, at most `limit`, the last to fail first."""
    parameters = {"names": list(names or ()), "every": names is None, "max_rows": limit}
    return [
        FailedEntry._make((*row[:-1], None if row.last_error is None else json.loads(row.last_error)))
        for row in conn.execute(FIND_FAILED.on(tables), parameters)
    ]


def failed_ids(conn: Connection, /, tables: Tables, *, name: str, limit: int, after_id: str = "") -> list[str]:
    """Ids of failed jobs of a name, in their order, after `after_id`: a batch for `retry_failed`."""
    parameters = {"name": name, "after_id": after_id, "max_rows": limit}
    return list(conn.execute(FAILED_IDS.on(tables), parameters).scalars())


def count_failed(conn: Connection, /, tables: Tables, *, within: float | timedelta, limit: int) -> list[FailedCount]:
    """By name, the jobs that have failed for good in the last `within` seconds; reads `limit` rows of a name at most,
    those that were enqueued last."""
    parameters = {"within_ms": to_ms(seconds(within, "within")), "max_rows": limit}
    return [FailedCount._make(row) for row in conn.execute(COUNT_FAILED.on(tables), parameters)]


def retry_failed(conn: Connection, /, tables: Tables, *, ids: Sequence[str]) -> list[str]:
    """Set failed jobs back to pending, due now, with all their attempts and stalls; the ids changed.

    Their errors are kept until the next one. In the lines of their keys they come last. What is not failed, or is
    locked by another transaction, stays as it is. A job that fails again has its failure job a second time.
    """
    if not ids:
        return []
    parameters = {"ids": list(ids), "channel": tables.channel}
    return list(conn.execute(RETRY_FAILED.on(tables), parameters).scalars())
